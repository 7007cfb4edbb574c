-- The usual cases of the packed layout, written out: a counter that is in the hash of now, under unchanged numbers, and a clock that has not gone
-- back; of token bucket, fixed window and sliding window (estimate). As usual.lua decides them, without making a plain text to decide on.
--
-- Takes a form, the counter's value, the time, the place p of d[p...] (places.lua) and the epoch, and returns
--   1, value to write, plain text then   the charge passes
--   0, nil, plain text                   it does not, and nothing changes
--   nil                                  something else is the case

local function quick(d, value, now, p, epoch)
  local packed, layout, algorithm = struct.pack, d[p + 4], d[1]
  if #value ~= d[p + 5] then
    return nil
  end
  local base = (epoch - 2) * d[p] * 1000000
  if algorithm == 1 then
    local head, born, us, rem = struct.unpack(layout, value)
    local tokens, drain_us, drain_rem = d[9], d[11], d[12]
    us = us + base
    if head ~= d[p + 2] or us >= now + drain_us + 10000000 or rem >= tokens then
      return nil
    end
    local new_us, new_rem = now + d[13], d[14]
    if us >= now then
      new_us, new_rem = us + d[13], rem + d[14]
      if new_rem >= tokens then
        new_us, new_rem = new_us + 1, new_rem - tokens
      end
    end
    local full_us = now + drain_us
    if new_us < full_us or (new_us == full_us and new_rem <= drain_rem) then
      return 1, packed(layout, head, born, new_us - base, new_rem),
        d[p + 3] .. packed('<I7I8I5', born + base, new_us, new_rem)
    elseif d[4] == 0 then
      return 0, nil, d[p + 3] .. packed('<I7I8I5', born + base, us, rem)
    end

  elseif algorithm == 3 then
    local head, born, start, count = struct.unpack(layout, value)
    start = start + base
    if head ~= d[p + 2] or start > d.start then
      return nil
    end
    local used = (start < d.start and 0 or count) + d[7]
    if used <= d[6] then
      return 1, packed(layout, head, born, d.start - base, used),
        d[p + 3] .. packed('<I7I8I5', born + base, d.start, used)
    elseif d[4] == 0 then
      return 0, nil, d[p + 3] .. packed('<I7I8I5', born + base, start, count)
    end

  elseif algorithm == 4 then
    local head, born, start, current, previous = struct.unpack(layout, value)
    local window_us = d[9]
    local elapsed_us = now % window_us
    local newest = now - elapsed_us
    start = start + base
    if head ~= d[p + 2] or start > newest then
      return nil
    end
    local used, before = current, previous
    if start < newest then
      used, before = 0, start + window_us == newest and current or 0
    end
    local share = before * (window_us - elapsed_us)
    if share >= 9007199254740992 then
      return nil
    end
    used = used + d[7]
    if used - math.floor(-share / window_us) <= d[6] then
      return 1, packed(layout, head, born, newest - base, used, before),
        d[p + 3] .. packed('<I7I8I5I5', born + base, newest, used, before)
    elseif d[4] == 0 then
      return 0, nil, d[p + 3] .. packed('<I7I8I5I5', born + base, start, current, previous)
    end
  end
end
