"""A ten-year-old program: it knows nothing of netkit, resends nothing, and stops at the first failure."""

from __future__ import annotations

import os

import requests

URL = os.environ["EMBED_URL"]


def main() -> None:
    session = requests.Session()
    vectors = []
    for number in range(20):
        answer = session.post(URL, json={"model": "mock-embed", "input": f"text {number}"}, timeout=10)
        answer.raise_for_status()
        vectors.append(answer.json()["data"][0]["embedding"])
    print(f"{len(vectors)} vectors")


if __name__ == "__main__":
    main()
