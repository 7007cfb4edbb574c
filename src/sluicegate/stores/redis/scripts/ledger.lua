-- The leases of a counter, as sluicegate.algorithms.leasing has them.
--
-- Text: incarnation (16 characters), tokens out, first moment at which a lease may end, time at which a wish was last refused, birth of
-- the counter; then per lease holder (8 characters), serial, granted, spent, end, place. It stands behind a bucket's own text, which
-- has to know what is out, and in a key of its own beside any other counter.

local LEDGER_HEAD, LEDGER_ENTRY = '<c16I6I8I8I7', 40
local HOLD_US_MAX = 5500000 -- bounds.LEASE_HOLD_US_MAX
local LEASED_KEEP_US = 86400000000 -- bounds.LEASED_KEEP_US

-- The ledger in a text from a place on; nil where there cannot be one.
local function ledger_of(text, at)
  if #text < at + 44 or (#text - at - 44) % LEDGER_ENTRY ~= 0 then
    return nil
  end
  local life, out, first, short, born = unpacked(LEDGER_HEAD, text, at)
  return { life = life, out = out, first = first, short = short, born = born, entries = sub(text, at + 45) }
end

local function ledger_text(ledger)
  return packed(LEDGER_HEAD, ledger.life, ledger.out, ledger.first, ledger.short, ledger.born) .. ledger.entries
end

-- Writes off the leases that have ended; those that would end too late were written before the clock was set back.
local function write_off(ledger)
  local entries, latest = ledger.entries, now + HOLD_US_MAX
  if #entries == 0 or (now < ledger.first and ledger.first <= latest) then
    return
  end
  local kept, out, first = {}, 0, EXACT
  for at = 1, #entries, LEDGER_ENTRY do
    local granted, spent, ends = unpacked('<I5I5I8', entries, at + 14)
    if ends > now then
      local entry = sub(entries, at, at + LEDGER_ENTRY - 1)
      if ends > latest then
        ends = latest
        entry = sub(entry, 1, 24) .. packed('<I8', ends) .. sub(entry, 33)
      end
      kept[#kept + 1] = entry
      out, first = out + granted - spent, math.min(first, ends)
    end
  end
  ledger.entries, ledger.out, ledger.first = table.concat(kept), out, first
end
