"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does: never a reason to fail.
settings.register_profile(
    "rung", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("rung")
