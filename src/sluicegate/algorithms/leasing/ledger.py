"""The leases of one counter, as its store writes them down."""

from __future__ import annotations

from typing import NamedTuple

from sluicegate.bounds import LEASE_HOLD_US_MAX

__all__ = ["NEVER_US", "Lease", "Ledger"]

NEVER_US = 1 << 53


class Lease(NamedTuple):
    """``granted`` tokens, of which ``spent`` are known to be; it ends at ``expires_us`` of the store's clock.

    ``place_us``: where a window or log counts its tokens (start of the window, time of the entry); 0 of a bucket.
    """

    holder: str
    serial: int
    granted: int
    spent: int
    expires_us: int
    place_us: int


class Ledger(NamedTuple):
    """All leases of a counter that have not ended. ``incarnation``: the life of the server they were written in.

    ``short_us``: when a wish was last refused for want of tokens, 0 for never. ``first_us``: no lease ends before. ``touched_us``: the last step of
    a holder.
    """

    incarnation: str
    short_us: int = 0
    first_us: int = NEVER_US
    touched_us: int = 0
    leases: tuple[Lease, ...] = ()

    @property
    def out(self) -> int:
        """Tokens granted and not known to be spent."""
        return sum([lease.granted - lease.spent for lease in self.leases])

    def written_off(self, now_us: int) -> Ledger:
        """Without the leases that have ended; what was not reported of them is gone.

        Where the clock was set back, leases would end too late: they are dated to end as if made now.
        """
        latest_us = now_us + LEASE_HOLD_US_MAX
        if now_us < self.first_us <= latest_us or not self.leases:
            return self
        kept = [
            lease._replace(expires_us=min(lease.expires_us, latest_us))
            for lease in self.leases
            if lease.expires_us > now_us
        ]
        return self._of(kept)

    def of(self, holder: str, serial: int) -> Lease | None:
        """The lease of this id, if it has not ended."""
        for lease in self.leases:
            if lease.serial == serial and lease.holder == holder:
                return lease
        return None

    def without(self, gone: Lease) -> Ledger:
        """The ledger less one lease."""
        return self._of([lease for lease in self.leases if lease is not gone])

    def reported(self, lease: Lease, spent: int) -> Ledger:
        """The ledger after a report of what was spent of a lease; never less than before."""
        spent = max(lease.spent, min(spent, lease.granted))
        return self._replace(leases=tuple([one._replace(spent=spent) if one is lease else one for one in self.leases]))

    def granted(self, lease: Lease) -> Ledger:
        """The ledger with one more lease."""
        return self._of([*self.leases, lease])

    def _of(self, leases: list[Lease]) -> Ledger:
        first_us = min([lease.expires_us for lease in leases], default=NEVER_US)
        return self._replace(leases=tuple(leases), first_us=first_us)
