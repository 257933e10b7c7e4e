# syntax=docker/dockerfile:1
# The services of Rung, an image each, from one file:
#
#   docker build -f deploy/images/services.Dockerfile --target searcher -t rung-searcher .
#
# Targets: searcher scheduler checkpoint-gc metrics webhooks gateway, and `command`, which has the plain
# `rung` as its entrypoint, for `rung cluster init` and `rung metrics migrate`. All share every
# layer but the entrypoint, so a machine that runs several of them fetches one image. No
# framework is in them: only agents train.

ARG PYTHON_BASE=python:3.12-slim-bookworm

# The wheel of Rung, from nothing but what is packed into it.
FROM ${PYTHON_BASE} AS wheel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY constraints.txt ./
RUN pip install --constraint constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY foundation foundation
COPY worker worker
COPY cli cli
COPY sim sim
COPY services services
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheel .

# What Rung needs, in a layer that changes only with the versions; then Rung.
FROM ${PYTHON_BASE} AS installed
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
ARG EXTRAS="kafka s3 clickhouse"
COPY constraints.txt pyproject.toml deploy/images/requirements.py ./
RUN python requirements.py pyproject.toml ${EXTRAS} > requirements.txt \
 && python -m venv --without-pip /opt/rung \
 && pip --python /opt/rung/bin/python install --constraint constraints.txt --requirement requirements.txt
COPY --from=wheel /wheel /wheel
RUN pip --python /opt/rung/bin/python install --no-deps /wheel/*.whl \
 && pip --python /opt/rung/bin/python check

# What runs: no compiler, no pip cache, no sources, nobody's home, not root.
FROM ${PYTHON_BASE} AS service
LABEL org.opencontainers.image.title="Rung" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 rung \
 && useradd --system --uid 10001 --gid rung --no-create-home --home-dir /nonexistent rung \
 && install --directory --owner=rung --group=rung --mode=0700 /var/lib/rung
COPY --from=installed /opt/rung /opt/rung
ENV PATH=/opt/rung/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001:10001

FROM service AS command
HEALTHCHECK NONE
ENTRYPOINT ["rung"]

# A service answers on its probe port once it is started with `--probe 0.0.0.0:9464`.
FROM service AS probed
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --start-interval=2s --retries=3 \
    CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]

FROM probed AS searcher
ENTRYPOINT ["rung", "service", "searcher"]

FROM probed AS scheduler
ENTRYPOINT ["rung", "service", "scheduler"]

FROM probed AS checkpoint-gc
ENTRYPOINT ["rung", "service", "checkpoint-gc"]

FROM probed AS metrics
ENTRYPOINT ["rung", "service", "metrics"]

FROM probed AS webhooks
ENTRYPOINT ["rung", "service", "webhooks"]

FROM probed AS gateway
EXPOSE 8080
ENTRYPOINT ["rung", "service", "gateway"]
