-- Token bucket and leaky bucket, as sluicegate.algorithms has them: the time at which the bucket is full again (the queue
-- empty), in whole microseconds and a remainder in units of 1/tokens of one. Costs and drains come in the same form, made by
-- the caller, so that deciding is adding and comparing.
--
--   d[9] tokens  d[10] period_us  d[11], d[12] the full drain  d[13], d[14] the cost; -1 where it is above the capacity
--   of a leaky bucket also d[15], d[16] the longest queue a request may join  d[17] max_delay_us  d[18] 1 for nodelay
-- State: us, rem; of a leaky bucket also mark, the time of the last charge, or -1 - time where it cannot be given back; of a token
-- bucket of which parts are granted in advance also ledger. Such a bucket fills up only to what is not out.
-- Text: capacity, tokens, period (and delay, nodelay), born, us, rem (and mark); then the ledger, if there is one.

local function make_bucket(leaky)
  local bucket = {}

  -- What is out of a bucket in time, at most a full drain: its limit may have been lowered.
  local function out_of(ledger, capacity, tokens, period)
    return divided(math.min(ledger.out, capacity), period, tokens)
  end

  local function state_of(us, rem, mark, born, ledger, d)
    if ledger and ledger.out > 0 then
      local out_us, out_rem = out_of(ledger, d[6], d[9], d[10])
      if us < now + out_us or (us == now + out_us and rem < out_rem) then
        us, rem = now + out_us, out_rem
      end
    end
    return { us = us, rem = rem, mark = mark, born = born, ledger = ledger }
  end

  local function marked(mark)
    local latest = mark < 0 and -1 - mark or mark
    return now > latest and now or -1 - latest
  end

  local function spent(mark)
    return mark and (mark < 0 and mark or -1 - mark)
  end

  -- base + (us, rem), for a remainder below 2 * tokens.
  local function later(d, base, us, rem)
    us = base + us
    if rem >= d[9] then
      return us + 1, rem - d[9]
    end
    return us, rem
  end

  local function above(us, rem, other_us, other_rem)
    return us > other_us or (us == other_us and rem > other_rem)
  end

  -- What is used of the bucket, in the same form; a state from before a step of the clock counts as all of it.
  local function used(d, s)
    if not s or s.us < now then
      return 0, 0
    end
    if above(s.us - BEHIND_US, s.rem, now + d[11], d[12]) then
      return d[11], d[12]
    end
    return s.us - now, s.rem
  end

  function bucket.read(d, key)
    local text, err = fetch(d, key)
    if not text then
      return nil, err
    end
    local ledger
    if #text ~= (leaky and 52 or 37) then
      ledger = not leaky and ledger_of(text, 38)
      if not ledger then
        return nil, UNREADABLE
      end
    end
    local capacity, tokens, period, born, us, rem, mark
    local same = true
    if leaky then
      local delay, nodelay
      capacity, tokens, period, delay, nodelay, born, us, rem, mark = unpacked('<I5I5I7I6I1I7I8I5i8', text)
      same = delay == d[17] and nodelay == d[18]
      if mark >= EXACT or mark <= -EXACT then
        return nil, UNREADABLE
      end
    else
      capacity, tokens, period, born, us, rem = unpacked('<I5I5I7I7I8I5', text)
    end
    if us >= EXACT or born >= EXACT or rem >= tokens or period == 0 or period >= EXACT then
      return nil, UNREADABLE
    end
    if ledger and ledger.out > 0 then
      -- Time has passed under the old numbers and what was out; then leases end.
      local out_us, out_rem = out_of(ledger, capacity, tokens, period)
      if above(now + out_us, out_rem, us, rem) then
        us, rem = now + out_us, out_rem
      end
    end
    if ledger then
      write_off(ledger)
    end
    local s = { us = us, rem = rem, mark = mark, born = born, ledger = ledger }
    if not (same and capacity == d[6] and tokens == d[9] and period == d[10]) then
      s.old = { capacity, tokens, period }
    end
    return s
  end

  -- ceil(units * factor / divisor) in big numbers, as whole microseconds and a remainder.
  local function carried_big(d, s, factor, divisor, old_drain, new_drain)
    local units = big_add(big_mul(big_of(s.us - now), big_of(s.old[2])), big_of(s.rem))
    if big_less(old_drain, units) then
      units = old_drain
    end
    local quotient, rest = big_div(big_mul(units, factor), divisor)
    if #rest > 1 or rest[1] > 0 then
      quotient = big_add(quotient, { 1 })
    end
    if big_less(new_drain, quotient) then
      quotient = new_drain
    end
    local whole, rem = big_div(quotient, big_of(d[9]))
    return big_number(whole), big_number(rem)
  end

  -- The state under the numbers of d: tokens used stay used (keep), or their share does (scale); rounded up to a unit, at most one
  -- full drain. Units of 1/tokens microseconds become those of the new numbers by factor / divisor.
  function bucket.carry(d, s)
    local capacity, tokens, period = s.old[1], s.old[2], s.old[3]
    if d[5] == 2 or s.us < now then
      return s.ledger and state_of(0, 0, nil, s.born, s.ledger, d) or nil
    end
    local whole, rem
    local units, drain, new_drain = (s.us - now) * tokens + s.rem, capacity * period, d[6] * d[10]
    local factor, divisor = d[10], period
    if d[5] == 1 then
      factor, divisor = new_drain, drain
    end
    if units < EXACT and drain < EXACT and new_drain < EXACT then
      local common = common_divisor(factor, divisor)
      factor, divisor = factor / common, divisor / common
      units = math.min(units, drain)
      if units * factor < EXACT then
        units = math.min(-floor(-(units * factor) / divisor), new_drain)
        whole = floor(units / d[9])
        rem = units - whole * d[9]
      end
    end
    if not whole then
      local big_drain = big_mul(big_of(capacity), big_of(period))
      local big_new_drain = big_mul(big_of(d[6]), big_of(d[10]))
      if d[5] == 1 then
        whole, rem = carried_big(d, s, big_new_drain, big_drain, big_drain, big_new_drain)
      else
        whole, rem = carried_big(d, s, big_of(d[10]), big_of(period), big_drain, big_new_drain)
      end
    end
    if whole == 0 and rem == 0 then
      -- As above: it is full, also by a clock that goes back.
      return s.ledger and state_of(0, 0, nil, s.born, s.ledger, d) or nil
    end
    return state_of(now + whole, rem, spent(s.mark), s.born, s.ledger, d)
  end

  function bucket.admit(d, s)
    local us, rem = d[13], d[14]
    if us < 0 then
      return nil
    end
    local base, base_rem, mark, born = now, 0, now, now
    if s then
      born = s.born
      if leaky then
        mark = marked(s.mark)
      end
      if s.us >= now then
        if leaky and above(s.us, s.rem, now + d[15], d[16]) then
          return nil
        end
        base, base_rem = s.us, s.rem
      end
    end
    us, rem = later(d, base, us, base_rem + rem)
    if above(us, rem, now + d[11], d[12]) then
      return nil
    end
    return state_of(us, rem, leaky and mark or nil, born, s and s.ledger, d)
  end

  function bucket.clamp(d, s)
    if above(s.us - BEHIND_US, s.rem, now + d[11], d[12]) then
      return state_of(now + d[11], d[12], spent(s.mark), s.born, s.ledger, d)
    end
    return s
  end

  -- The state after a refused charge that counts: at most one full drain, and no less than before.
  function bucket.refused(d, s)
    local used_us, used_rem = used(d, s)
    local us, rem = later(d, used_us, d[13], used_rem + d[14])
    if above(us, rem, d[11], d[12]) then
      us, rem = d[11], d[12]
    end
    if above(used_us, used_rem, us, rem) then
      us, rem = used_us, used_rem
    end
    local mark
    if leaky then
      mark = s and spent(marked(s.mark)) or -1 - now
    end
    return state_of(now + us, rem, mark, s and s.born or now, s and s.ledger, d)
  end

  -- A token bucket gives back the cost less what time has; a leaky one its slot, while that is the last.
  function bucket.refund(d, s, charged_us)
    local us, rem = d[13], d[14]
    if s.us < now or (s.us == now and s.rem == 0) then
      return s
    end
    local mark
    if leaky then
      if s.mark ~= charged_us then
        return s
      end
      mark = -1 - s.mark
    else
      us = us - math.max(now - charged_us, 0)
      if us < 0 or (us == 0 and rem == 0) then
        return s
      end
      s = bucket.clamp(d, s)
    end
    us, rem = s.us - us, s.rem - rem
    if rem < 0 then
      us, rem = us - 1, rem + d[9]
    end
    local after = state_of(us, rem, mark, s.born, s.ledger, d)
    return after.us == s.us and after.rem == s.rem and s or after
  end

  -- Up to the cost less used, and how many tokens less; a part of a token counts as one.
  function bucket.grant(d, s)
    local us, rem = used(d, s)
    local base, base_rem = now, 0
    if s.ledger then
      -- What is out is not given back.
      local out_us, out_rem = out_of(s.ledger, d[6], d[9], d[10])
      base, base_rem = now + out_us, out_rem
      us, rem = us - out_us, rem - out_rem
      if rem < 0 then
        us, rem = us - 1, rem + d[9]
      end
    end
    if us == 0 and rem == 0 then
      return s, 0
    end
    local mark = spent(s.mark)
    if above(d[13], d[14], us, rem) then
      local whole, rest = divided(us, d[9], d[10])
      return state_of(base, base_rem, mark, s.born, s.ledger, d), whole + math.ceil((rest + rem) / d[10])
    end
    us, rem = us - d[13], rem - d[14]
    if rem < 0 then
      us, rem = us - 1, rem + d[9]
    end
    us, rem = later(d, base, us, base_rem + rem)
    return state_of(us, rem, mark, s.born, s.ledger, d), d[7]
  end

  function bucket.show(d, s)
    if leaky then
      return packed('<I5I5I7I6I1I7I8I5i8', d[6], d[9], d[10], d[17], d[18], s.born, s.us, s.rem, s.mark)
    end
    return packed('<I5I5I7I7I8I5', d[6], d[9], d[10], s.born, s.us, s.rem)
  end

  function bucket.write(d, key, s)
    local text, ttl_us = bucket.show(d, s), 2 * math.max(d[11] + 1, s.us - now)
    if s.ledger then
      text, ttl_us = text .. ledger_text(s.ledger), math.max(ttl_us, LEASED_KEEP_US)
    end
    store(d, key, text, ttl_us)
  end

  return bucket
end
