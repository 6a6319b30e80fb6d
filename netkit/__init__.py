"""netkit: plugin-based middleware for requests, httpx, httpx2 and aiohttp."""
