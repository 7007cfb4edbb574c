"""A FastAPI service with tiers: 5 requests a minute for everybody, 20 for those who pay."""

from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request, Response

from sluicegate import Facts, Limiter
from sluicegate.doors.headers import RateHeaders

limiter = Limiter.from_file(Path(__file__).with_name("rules.yaml"))
rate_headers = RateHeaders("x-ratelimit")


async def rate_limited(request: Request, response: Response) -> Facts:
    """Decide before the endpoint runs; give it what is known of the caller."""
    facts = limiter.resolver.facts(
        request.method,
        request.scope["raw_path"].decode("latin-1"),
        request.headers.get("host"),
        request.headers.raw,
        request.client.host if request.client else None,
    )
    decision = await limiter.acheck(facts)
    headers = dict(rate_headers.items(decision, now_us=0))
    if not decision:
        raise HTTPException(429, f"rule {decision.rule!r} allows no more just now", headers)
    response.headers.update(headers)
    return facts


app = FastAPI()
Caller = Annotated[Facts, Depends(rate_limited)]


@app.get("/quotes/{symbol}")
async def quote(symbol: str, caller: Caller) -> dict[str, object]:
    """A made-up price, the same for the same symbol."""
    return {"symbol": symbol, "price": 10 + sum(symbol.encode()) % 90, "caller": caller.api_key or caller.ip}
