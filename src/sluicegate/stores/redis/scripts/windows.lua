-- Fixed window and the two forms of the sliding window, as sluicegate.algorithms has them.
--
-- Fixed window: d[7] length in microseconds; d[8] origin, the start of some window; or d[8] -1 and d[9] the starts of five
--   calendar windows in a row, which must hold now in one of the first three. State: start, count.
-- Estimate: d[7] length. State: start, current, previous.
-- Strict: d[7] length of a sub-window, d[8] their number k. State: number of the newest, and k + 1 counts, newest first.

-- Texts of windows: one old number, the limit; `count` numbers of state after `born`.
local function read_window(d, key, count)
  local text, err = fetch(key)
  if not text then
    return nil, err
  end
  local old, state = split(text)
  if not old or #old ~= 1 or old[1] < 1 or #state ~= count + 1 then
    return nil, UNREADABLE
  end
  local s = { born = table.remove(state, 1), n = state }
  if sub(text, 1, #d[2]) ~= d[2] then
    s.old = old
  end
  return s
end

local function write_window(d, key, s, ttl_us)
  local numbers = {}
  for i = 1, #s.n do
    numbers[i] = format('%.0f', s.n[i])
  end
  store(key, d[2] .. format('%.0f ', s.born) .. table.concat(numbers, ' '), ttl_us)
end

local function show_window(_, s)
  return s and s.n or {}
end

-- The windows around now, once per call: start of the present one, its end, and the end of the next. False where the caller's
-- calendar does not reach.
local function place_window(d)
  if d[8] >= 0 then
    d.start = now - (now - d[8]) % d[7]
    d.stop = d.start + d[7]
    d.next_stop = d.stop + d[7]
    return true
  end
  local starts = d[9]
  for i = 1, 3 do
    if starts[i] <= now and now < starts[i + 1] then
      d.start, d.stop, d.next_stop = starts[i], starts[i + 1], starts[i + 2]
      return true
    end
  end
  return false
end

local function make_fixed()
  local fixed = { show = show_window }

  local function state_of(start, count, s)
    return { n = { start, count }, born = s and s.born or now }
  end

  -- The window to count in, and its count.
  local function at(d, s)
    if not s or s.n[1] < d.start then
      return d.start, 0
    end
    if s.n[1] - now > BEHIND_US then
      return d.start, s.n[2]
    end
    return s.n[1], s.n[2]
  end

  function fixed.read(d, key)
    return read_window(d, key, 2)
  end

  function fixed.carry(d, s)
    if d[5] == 2 then
      return nil
    end
    local count = s.n[2]
    if d[5] == 1 then
      count = ceil_div(count, d[6], s.old[1])
    end
    return state_of(fixed.clamp(d, s).n[1], math.min(count, d[6]), s)
  end

  function fixed.admit(d, s, cost)
    local start, count = at(d, s)
    if count + cost > d[6] then
      return nil
    end
    return state_of(start, count + cost, s)
  end

  function fixed.clamp(d, s)
    if s.n[1] - now <= BEHIND_US then
      return s
    end
    return state_of(d.start, s.n[2], s)
  end

  function fixed.refused(d, s, cost)
    local start, count = at(d, s)
    return state_of(start, math.min(count + cost, d[6]), s)
  end

  function fixed.refund(d, s, cost, _, _, charged_us)
    local start = s.n[1]
    local stop
    if start == d.start then
      stop = d.stop
    elseif start == d.stop then
      stop = d.next_stop
    elseif start > now and d[8] >= 0 then
      stop = start + d[7]
    else
      return s
    end
    if start <= charged_us and charged_us < stop and s.n[2] > 0 then
      return state_of(start, math.max(s.n[2] - cost, 0), s)
    end
    return s
  end

  function fixed.write(d, key, s)
    write_window(d, key, s, math.max(2 * d[7], s.n[1] + d[7] - now, d.next_stop - now))
  end

  return fixed
end

local function make_estimate()
  local estimate = { show = show_window }

  local function state_of(start, current, previous, s)
    return { n = { start, current, previous }, born = s and s.born or now }
  end

  local function overlap(d, start)
    return d[7] - math.max(now - start, 0)
  end

  -- The counts as of the window of now, or of their own while a clock that went back is catching up.
  local function at(d, s)
    local start = now - now % d[7]
    if not s then
      return start, 0, 0
    end
    local written, current, previous = s.n[1], s.n[2], s.n[3]
    if written == start then
      return start, current, previous
    end
    if written > start then
      if written - now <= BEHIND_US then
        return written, current, previous
      end
      return start, math.min(current + previous, d[6]), 0
    end
    return start, 0, written + d[7] == start and current or 0
  end

  local function capped(d, start, current, previous, s)
    current = math.min(current, d[6])
    local room = floor_div(d[6] - current, d[7], overlap(d, start))
    return state_of(start, current, math.min(previous, room), s)
  end

  function estimate.read(d, key)
    return read_window(d, key, 3)
  end

  function estimate.carry(d, s)
    if d[5] == 2 then
      return nil
    end
    -- The old limit caps the sum where the clock was set back.
    local start, current, previous = at({ [6] = s.old[1], [7] = d[7] }, s)
    if d[5] == 1 then
      current, previous = ceil_div(current, d[6], s.old[1]), ceil_div(previous, d[6], s.old[1])
    end
    return capped(d, start, current, previous, s)
  end

  function estimate.admit(d, s, cost)
    local start, current, previous = at(d, s)
    current = current + cost
    if current > d[6] or current + ceil_div(previous, overlap(d, start), d[7]) > d[6] then
      return nil
    end
    return state_of(start, current, previous, s)
  end

  function estimate.clamp(d, s)
    local start, current, previous = at(d, s)
    return start < s.n[1] and state_of(start, current, previous, s) or s
  end

  function estimate.refused(d, s, cost)
    local start, current, previous = at(d, s)
    return capped(d, start, current + cost, previous, s)
  end

  function estimate.refund(d, s, cost, _, _, charged_us)
    local start, current, previous = s.n[1], s.n[2], s.n[3]
    local windows = current > 0 and 2 or previous > 0 and 1 or 0
    if now >= start + windows * d[7] then
      return s
    end
    local age = floor((start + d[7] - 1 - charged_us) / d[7])
    if age == 0 and current > 0 then
      return state_of(start, math.max(current - cost, 0), previous, s)
    elseif age == 1 and previous > 0 then
      return state_of(start, current, math.max(previous - cost, 0), s)
    end
    return s
  end

  function estimate.write(d, key, s)
    write_window(d, key, s, math.max(2 * d[7], s.n[1] + 2 * d[7] - now))
  end

  return estimate
end

local function make_strict()
  local strict = { show = show_window }

  local function state_of(numbers, s)
    return { n = numbers, born = s and s.born or now }
  end

  -- The counts as of the sub-window of now, as a new array.
  local function at(d, s)
    local newest, kept = floor(now / d[7]), d[8] + 1
    local n = { newest }
    local shift = -kept
    if s then
      shift = s.n[1] - newest
      if shift > 0 and s.n[1] * d[7] - now <= BEHIND_US then
        n[1], shift = s.n[1], 0
      end
    end
    -- shift < 0: sub-windows have passed; shift > 0: those that have not begun are taken into the newest.
    for i = 2, kept + 1 do
      n[i] = s and i + shift >= 2 and s.n[i + shift] or 0
    end
    if shift > 0 then
      local sum = 0
      for i = 2, math.min(2 + shift, kept + 1) do
        sum = sum + s.n[i]
      end
      n[2] = sum
    end
    return n
  end

  local function used(n)
    local sum = 0
    for i = 2, #n do
      sum = sum + n[i]
    end
    return sum
  end

  local function capped(d, n, s)
    local room = d[6]
    for i = 2, #n do
      n[i] = math.min(n[i], room)
      room = room - n[i]
    end
    return state_of(n, s)
  end

  local function expires(d, n)
    for i = 2, #n do
      if n[i] > 0 then
        return (n[1] - (i - 2) + d[8] + 1) * d[7]
      end
    end
    return n[1] * d[7]
  end

  function strict.read(d, key)
    return read_window(d, key, d[8] + 2)
  end

  function strict.carry(d, s)
    if d[5] == 2 then
      return nil
    end
    local n = at(d, s)
    if d[5] == 1 then
      local sum, before = 0, 0
      for i = 2, #n do
        sum = sum + n[i]
        local scaled = ceil_div(sum, d[6], s.old[1])
        n[i] = scaled - before
        before = scaled
      end
    end
    return capped(d, n, s)
  end

  function strict.admit(d, s, cost)
    local n = at(d, s)
    if used(n) + cost > d[6] then
      return nil
    end
    n[2] = n[2] + cost
    return state_of(n, s)
  end

  function strict.clamp(d, s)
    local n = at(d, s)
    return n[1] < s.n[1] and state_of(n, s) or s
  end

  function strict.refused(d, s, cost)
    local n = at(d, s)
    n[2] = n[2] + cost
    return capped(d, n, s)
  end

  function strict.refund(d, s, cost, _, _, charged_us)
    local age = s.n[1] - floor(charged_us / d[7])
    if now >= expires(d, s.n) or age < 0 or age > d[8] or s.n[age + 2] == 0 then
      return s
    end
    local n = {}
    for i = 1, #s.n do
      n[i] = s.n[i]
    end
    n[age + 2] = math.max(n[age + 2] - cost, 0)
    return state_of(n, s)
  end

  function strict.write(d, key, s)
    write_window(d, key, s, math.max(2 * d[7] * d[8], expires(d, s.n) - now))
  end

  return strict
end
