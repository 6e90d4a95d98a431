# Two targets: `rollbook` (controller, demo workers, nats-server) and `router` (sglang-router).
# Both take their versions from constraints.txt, which is what the tests run.

FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
# A named volume takes its owner from the folder it is mounted over.
RUN useradd --system --create-home --uid 10001 rollbook \
    && install -d -o rollbook -g rollbook /etc/rollbook /var/lib/nats
COPY constraints.txt /tmp/constraints.txt

FROM base AS router
RUN pip install --constraint /tmp/constraints.txt sglang-router
USER rollbook
CMD ["sglang-router", "launch", "--help"]

FROM base AS rollbook
COPY pyproject.toml README.md LICENSE /src/
COPY events /src/events
COPY projections /src/projections
COPY adapters /src/adapters
RUN pip install --constraint /tmp/constraints.txt "/src[cli]"
USER rollbook
WORKDIR /etc/rollbook
CMD ["rollbook", "--help"]
