"""A URL shortener with quotas per user. A request that turns out to be worth nothing is given back."""

from hashlib import sha256
from pathlib import Path
from typing import Annotated

from fastapi import Body, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from sluicegate import Decision, Limiter
from sluicegate.doors.headers import RateHeaders

limiter = Limiter.from_file(Path(__file__).with_name("rules.yaml"))
rate_headers = RateHeaders("x-ratelimit")
links: dict[str, str] = {}


async def rate_limited(request: Request, response: Response) -> Decision:
    """Decide before the endpoint runs, with a receipt for the case that it has to be given back."""
    facts = limiter.resolver.facts(
        request.method,
        request.scope["raw_path"].decode("latin-1"),
        request.headers.get("host"),
        request.headers.raw,
        request.client.host if request.client else None,
    )
    decision = await limiter.acheck(facts, receipt=True)
    headers = dict(rate_headers.items(decision, now_us=0))
    if not decision:
        raise HTTPException(429, f"rule {decision.rule!r} allows no more just now", headers)
    response.headers.update(headers)
    return decision


app = FastAPI()
Allowed = Annotated[Decision, Depends(rate_limited)]


@app.post("/api/v1/shorten", status_code=201)
async def shorten(url: Annotated[str, Body(embed=True)], allowed: Allowed) -> dict[str, str]:
    """Make a short link. What is no web address costs nothing."""
    if not url.startswith(("https://", "http://")):
        limiter.refund(allowed)
        raise HTTPException(422, "only http and https addresses can be shortened")
    code = sha256(url.encode()).hexdigest()[:8]
    links[code] = url
    return {"short": f"/{code}"}


@app.get("/{code}", dependencies=[Depends(rate_limited)], response_class=RedirectResponse)
async def follow(code: str) -> str:
    """Go where the link leads."""
    if code not in links:
        raise HTTPException(404, "no such link")
    return links[code]
