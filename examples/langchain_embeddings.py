"""LangChain's embeddings and chat through netkit: the clients that it takes are netkit's.

Run it: pip install langchain-openai; python examples/langchain_embeddings.py
"""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

import netkit
from netkit.testing import MockGPU


def main() -> None:
    with MockGPU(launch_ms=5) as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        with netkit.Client(verify=trust, plugins={"batch": True, "retry": {"attempts": 4}}) as http:
            url, key = f"{gpu.url}/v1", SecretStr("none")
            # check_embedding_ctx_length=False: texts go out as texts, without a tokenizer to download.
            embeddings = OpenAIEmbeddings(
                model="mock-embed",
                base_url=url,
                api_key=key,
                http_client=http,
                max_retries=0,
                check_embedding_ctx_length=False,
            )
            with ThreadPoolExecutor(32) as threads:
                vectors = list(threads.map(embeddings.embed_query, (f"text {number}" for number in range(128))))
            print(f"{len(vectors)} vectors in {len(gpu.log.requests)} requests")
            chat = ChatOpenAI(model="mock-chat", base_url=url, api_key=key, http_client=http, max_retries=0)
            print(f"chat: {len(str(chat.invoke('hello').content)) > 0}")


if __name__ == "__main__":
    main()
