"""A project whose policy stands in its pyproject.toml: the code names no option.

Run it from its folder: cd examples/config_project && python main.py
"""

from __future__ import annotations

import ssl

import netkit
from netkit.testing import MockGPU, faults


def main() -> None:
    with MockGPU(launch_ms=1) as gpu, netkit.Client(verify=ssl.create_default_context(cafile=gpu.ca_file)) as client:
        gpu.faults.push(faults.statuses(503, 503, 200))
        answer = client.post(f"{gpu.url}/v1/embeddings", json={"model": "mock-embed", "input": "hello"})
        print(f"embeddings: {answer.status_code} after {len(gpu.log.requests)} attempts")

        gpu.faults.push(faults.Status(503))
        gpu.log.clear()
        chat = {"model": "mock-chat", "messages": [{"role": "user", "content": "hi"}]}
        answer = client.post(f"{gpu.url}/v1/chat/completions", json=chat)
        print(f"chat: {answer.status_code} after {len(gpu.log.requests)} attempt")


if __name__ == "__main__":
    main()
