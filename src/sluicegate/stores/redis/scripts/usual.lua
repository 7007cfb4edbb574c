-- The usual cases, written out: counters that are there under unchanged numbers, or new, and a clock that has not gone back.
--
-- `usual` takes a form, the counter's text (false: none) and the time, and returns
--   1, text to write, what to show     the charge passes
--   0, nil, what to show               it does not, and nothing changes
--   0, text to write                   it does not, and counts
--   nil                                something else is the case: the general code decides
-- What to show is nil where it is the text itself. Nothing is read or written here, and a text is never trusted: what is not as it
-- must be is left to the general code. One function without outer variables, because each costs every call a little.

local function usual(d, text, now)
  local packed, unpacked, floor, sub = struct.pack, struct.unpack, math.floor, string.sub
  local EXACT, BEHIND_US = 9007199254740992, 10000000
  local algorithm = d[1]

  if algorithm == 1 then -- token bucket
    local capacity, tokens, period, drain_us, drain_rem = d[6], d[9], d[10], d[11], d[12]
    local born, us, rem = now, now, 0
    if text then
      if #text ~= 37 then
        return nil
      end
      local capacity_then, tokens_then, period_then
      capacity_then, tokens_then, period_then, born, us, rem = unpacked('<I5I5I7I7I8I5', text)
      if capacity_then ~= capacity or tokens_then ~= tokens or period_then ~= period
          or born >= EXACT or us >= now + drain_us + BEHIND_US or rem >= tokens then
        return nil
      end
    end
    local base_us, base_rem = us, rem
    if us < now then
      base_us, base_rem = now, 0
    end
    local new_us, new_rem = base_us + d[13], base_rem + d[14]
    if new_rem >= tokens then
      new_us, new_rem = new_us + 1, new_rem - tokens
    end
    local full_us = now + drain_us
    if new_us < full_us or (new_us == full_us and new_rem <= drain_rem) then
      return 1, packed('<I5I5I7I7I8I5', capacity, tokens, period, born, new_us, new_rem)
    elseif d[4] == 0 then
      return 0
    elseif us > full_us or (us == full_us and rem > drain_rem) then
      return nil
    end
    -- The refusal counts, at most one full drain.
    return 0, packed('<I5I5I7I7I8I5', capacity, tokens, period, born, full_us, drain_rem)

  elseif algorithm == 2 then -- leaky bucket
    local capacity, tokens, period, drain_us, drain_rem = d[6], d[9], d[10], d[11], d[12]
    local delay_us, nodelay = d[17], d[18]
    local born, us, rem, mark = now, now, 0, now
    if text then
      if #text ~= 52 then
        return nil
      end
      local capacity_then, tokens_then, period_then, delay_then, nodelay_then
      capacity_then, tokens_then, period_then, delay_then, nodelay_then, born, us, rem, mark =
        unpacked('<I5I5I7I6I1I7I8I5i8', text)
      if capacity_then ~= capacity or tokens_then ~= tokens or period_then ~= period or delay_then ~= delay_us
          or nodelay_then ~= nodelay or born >= EXACT or us >= now + drain_us + BEHIND_US or rem >= tokens
          or mark >= EXACT or mark <= -EXACT then
        return nil
      end
      -- The charge can be given back where it is the last of its time.
      local latest = mark < 0 and -1 - mark or mark
      mark = now > latest and now or -1 - latest
    end
    local base_us, base_rem, patient = now, 0, true
    if us >= now then
      local patient_us = now + d[15]
      base_us, base_rem = us, rem
      patient = us < patient_us or (us == patient_us and rem <= d[16])
    end
    local new_us, new_rem = base_us + d[13], base_rem + d[14]
    if new_rem >= tokens then
      new_us, new_rem = new_us + 1, new_rem - tokens
    end
    local full_us = now + drain_us
    local fits = new_us < full_us or (new_us == full_us and new_rem <= drain_rem)
    if patient and fits then
      return 1, packed('<I5I5I7I6I1I7I8I5i8', capacity, tokens, period, delay_us, nodelay, born, new_us, new_rem, mark)
    elseif d[4] == 0 then
      return 0
    elseif base_us > full_us or (base_us == full_us and base_rem > drain_rem) then
      return nil
    elseif not fits then
      new_us, new_rem = full_us, drain_rem
    end
    -- The refusal counts, at most one full drain, and takes the place of the last charge.
    mark = mark < 0 and mark or -1 - mark
    return 0, packed('<I5I5I7I6I1I7I8I5i8', capacity, tokens, period, delay_us, nodelay, born, new_us, new_rem, mark)

  elseif algorithm == 3 then -- fixed window
    local limit, start = d[6], d.start
    local count, born = 0, now
    if text then
      if #text ~= 25 then
        return nil
      end
      local limit_then, start_then
      limit_then, born, start_then, count = unpacked('<I5I7I8I5', text)
      if limit_then ~= limit or born >= EXACT or start_then > start then
        return nil
      elseif start_then < start then
        count = 0
      end
    end
    count = count + d[7]
    if count <= limit then
      return 1, packed('<I5I7I8I5', limit, born, start, count)
    elseif d[4] == 1 then
      return 0, packed('<I5I7I8I5', limit, born, start, limit)
    end
    return 0

  elseif algorithm == 4 then -- sliding window, estimate
    local limit, window_us = d[6], d[9]
    local elapsed_us = now % window_us
    local start = now - elapsed_us
    local current, previous, born = 0, 0, now
    if text then
      if #text ~= 30 then
        return nil
      end
      local limit_then, start_then
      limit_then, born, start_then, current, previous = unpacked('<I5I7I8I5I5', text)
      if limit_then ~= limit or born >= EXACT or start_then > start then
        return nil
      elseif start_then < start then
        previous = start_then + window_us == start and current or 0
        current = 0
      end
    end
    local overlap_us = window_us - elapsed_us
    local share = previous * overlap_us
    if share >= EXACT then
      return nil
    end
    current = current + d[7]
    if current - floor(-share / window_us) <= limit then
      return 1, packed('<I5I7I8I5I5', limit, born, start, current, previous)
    elseif d[4] == 0 then
      return 0
    end
    -- The refusal counts; the older count gives way, so that they are the limit at most.
    current = current < limit and current or limit
    local room = (limit - current) * window_us
    if room >= EXACT then
      return nil
    end
    room = floor(room / overlap_us)
    return 0, packed('<I5I7I8I5I5', limit, born, start, current, previous < room and previous or room)

  elseif algorithm == 5 then -- sliding window, strict
    local limit, length_us, kept, layout = d[6], d[9], d[10], d[11]
    local newest = floor(now / length_us)
    local n
    if text then
      if #text ~= 20 + 5 * (kept + 1) then
        return nil
      end
      n = { unpacked(layout, text) }
      local age = newest - n[3]
      if n[1] ~= limit or n[2] >= EXACT or age < 0 then
        return nil
      end
      if age > 0 then
        n[3] = newest
        for i = kept + 4, 4, -1 do
          n[i] = i - age >= 4 and n[i - age] or 0
        end
      end
    else
      n = { limit, now, newest }
      for i = 4, kept + 4 do
        n[i] = 0
      end
    end
    local used = d[7]
    for i = 4, kept + 4 do
      used = used + n[i]
    end
    n[4] = n[4] + d[7]
    if used > limit and d[4] == 0 then
      return 0
    elseif used > limit then
      -- The refusal counts; the older counts give way.
      local room = limit
      for i = 4, kept + 4 do
        n[i] = n[i] < room and n[i] or room
        room = room - n[i]
      end
    end
    return used <= limit and 1 or 0, packed(layout, unpack(n, 1, kept + 4))

  elseif algorithm == 6 then -- sliding log
    local limit, cost = d[6], d[7]
    if not text then
      return 1, packed('<I5I7I5I4I7I5', limit, now, cost, 0, now, cost), packed('<I5I8', cost, now)
    end
    local size = #text
    if size < 33 or (size - 21) % 12 ~= 0 then
      return nil
    end
    local limit_then, born, total, gone = unpacked('<I5I7I5I4', text)
    local last, last_count = unpacked('<I7I5', text, size - 11)
    if limit_then ~= limit or born >= EXACT or gone > 0 or last > now then
      return nil
    end
    -- What has left the window goes when something is written.
    local gone_us, at = now - d[9], 22
    local time, count = unpacked('<I7I5', text, at)
    while time <= gone_us do
      total, at = total - count, at + 12
      if at > size then
        break
      end
      time, count = unpacked('<I7I5', text, at)
    end
    if total < 0 or (total == 0) ~= (at > size) then
      return nil
    end
    if total + cost > limit then
      if d[4] == 1 then
        return nil
      end
      local needed = total + cost - limit
      while needed > count do
        needed, at = needed - count, at + 12
        if at > size then
          return nil
        end
        time, count = unpacked('<I7I5', text, at)
      end
      return 0, nil, packed('<I5I8', total, time)
    end
    total = total + cost
    local shown = packed('<I5I8', total, now)
    local head = packed('<I5I7I5I4', limit, born, total, 0)
    if last == now and at <= size then
      return 1, head .. sub(text, at, size - 12) .. packed('<I7I5', now, last_count + cost), shown
    end
    return 1, head .. sub(text, at) .. packed('<I7I5', now, cost), shown
  end
end
