# volta_fn with its compiler, and a software Vulkan in place of a GPU.
#
#   docker build -t volta_fn .
#   docker run --rm -it volta_fn                 # Python
#   docker run --rm volta_fn python -m volta_fn.info
#
# With NVIDIA's container toolkit, `docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all` uses the machine's GPUs.
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE MANIFEST.in ./
COPY volta_fn volta_fn
RUN python -m venv /opt/volta && /opt/volta/bin/pip install --no-cache-dir .

FROM python:3.13-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home volta
COPY --from=build /opt/volta /opt/volta
ENV PATH=/opt/volta/bin:$PATH
USER volta
WORKDIR /home/volta
CMD ["python"]
