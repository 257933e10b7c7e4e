"""Policies and templates: what an experiment file is merged with, and its bounds.

`resolve` returns the merged file and where each value came from, or refuses it (decision 0046).
Pure: the same file, templates and policies give the same result.
"""

from rung.config.policy.layer import DefaultPool, Origin, Policy, PolicyKind, Scope, Template
from rung.config.policy.policy_file import check_policy, check_template
from rung.config.policy.resolution import POOL_PATH, Resolved, check_values, resolve

__all__ = [
    "POOL_PATH",
    "DefaultPool",
    "Origin",
    "Policy",
    "PolicyKind",
    "Resolved",
    "Scope",
    "Template",
    "check_policy",
    "check_template",
    "check_values",
    "resolve",
]
