# syntax=docker/dockerfile:1
# The agent of Rung, which trains: PyTorch is in it.
#
#   docker build -f deploy/images/agent.Dockerfile -t rung-agent .
#
# PyTorch's wheels bring CUDA's libraries along and the container toolkit of the node its driver, so
# the plain base is enough. Who compiles CUDA code in a trial takes a base with the compiler
# instead, such as CUDA_BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04. Any Debian or Ubuntu with Python
# 3.11 or newer will do. What trials import beyond PyTorch goes into an image of your own:
#
#   FROM rung-agent
#   RUN /opt/rung/bin/pip install lightning

ARG CUDA_BASE=python:3.12-slim-bookworm

FROM ${CUDA_BASE} AS python
ENV DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN if ! command -v python3 > /dev/null; then \
      apt-get update \
      && apt-get install --yes --no-install-recommends python3 python3-venv \
      && rm -rf /var/lib/apt/lists/*; \
    fi

# The wheel of Rung, from nothing but what is packed into it.
FROM python AS wheel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY constraints.txt ./
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --constraint constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY foundation foundation
COPY worker worker
COPY cli cli
COPY sim sim
COPY services services
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel .

# PyTorch comes first, in a layer that no other change repeats: it is several gigabytes.
FROM python AS agent
LABEL org.opencontainers.image.title="Rung agent" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY constraints.txt ./
RUN python3 -m venv /opt/rung \
 && /opt/rung/bin/pip install --constraint constraints.txt torch torchdata numpy

ARG EXTRAS="worker kafka s3"
COPY pyproject.toml deploy/images/requirements.py ./
RUN python3 requirements.py pyproject.toml ${EXTRAS} > requirements.txt \
 && /opt/rung/bin/pip install --constraint constraints.txt --requirement requirements.txt
COPY --from=wheel /wheel /wheel
RUN /opt/rung/bin/pip install --no-deps /wheel/*.whl \
 && /opt/rung/bin/pip check \
 && groupadd --system --gid 10001 rung \
 && useradd --system --uid 10001 --gid rung --no-create-home --home-dir /var/lib/rung rung \
 && install --directory --owner=rung --group=rung --mode=0750 /var/lib/rung

ENV HOME=/var/lib/rung \
    PATH=/opt/rung/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /var/lib/rung
VOLUME /var/lib/rung
USER 10001:10001
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --start-interval=2s --retries=3 \
    CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]
ENTRYPOINT ["rung", "service", "agent"]
