-- Fixed window and the two forms of the sliding window, as sluicegate.algorithms has them.
--
-- Fixed window: see place.lua. State: start, count.
-- Estimate: d[9] length in microseconds. State: start, current, previous.
-- Strict: d[9] length of a sub-window, d[10] their number k, d[11] layout of its text. State: number of the newest sub-window, and
--   k + 1 counts, newest first.
-- Text: limit, born, state. In here the state's numbers are the array `n`.

-- `count`: the numbers of the state.
local function read_window(d, key, layout, count)
  local text, err = fetch(d, key)
  if not text then
    return nil, err
  end
  if #text ~= 15 + 5 * count then
    return nil, UNREADABLE
  end
  local n = { unpacked(layout, text) }
  local limit, born = n[1], n[2]
  if limit < 1 or born >= EXACT or n[3] >= EXACT then
    return nil, UNREADABLE
  end
  local s = { born = born, n = {} }
  for i = 1, count do
    s.n[i] = n[i + 2]
  end
  if limit ~= d[6] then
    s.old = { limit }
  end
  return s
end

local function show_window(d, s, layout)
  return packed(layout, d[6], s.born, unpack(s.n))
end

local function make_fixed()
  local fixed, layout = {}, '<I5I7I8I5'

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
    return read_window(d, key, layout, 2)
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

  function fixed.admit(d, s)
    local start, count = at(d, s)
    if count + d[7] > d[6] then
      return nil
    end
    return state_of(start, count + d[7], s)
  end

  function fixed.clamp(d, s)
    if s.n[1] - now <= BEHIND_US then
      return s
    end
    return state_of(d.start, s.n[2], s)
  end

  function fixed.refused(d, s)
    local start, count = at(d, s)
    return state_of(start, math.min(count + d[7], d[6]), s)
  end

  -- first_us, stop_us: the window of the charge, where it is one of a calendar.
  function fixed.refund(d, s, charged_us, first_us, stop_us)
    if d[10] >= 0 then
      first_us = charged_us - (charged_us - d[10]) % d[9]
      stop_us = first_us + d[9]
    end
    if s.n[1] == first_us and now < stop_us and s.n[2] > 0 then
      return state_of(first_us, math.max(s.n[2] - d[7], 0), s)
    end
    return s
  end

  function fixed.grant(d, s)
    local start, count = at(d, s)
    local given = math.min(count, d[7])
    return state_of(start, count - given, s), given
  end

  function fixed.show(d, s)
    return show_window(d, s, layout)
  end

  function fixed.write(d, key, s)
    store(d, key, fixed.show(d, s), math.max(2 * d[9], s.n[1] + d[9] - now, d.next_stop - now))
  end

  return fixed
end

local function make_estimate()
  local estimate, layout = {}, '<I5I7I8I5I5'

  local function state_of(start, current, previous, s)
    return { n = { start, current, previous }, born = s and s.born or now }
  end

  local function overlap(d, start)
    return d[9] - math.max(now - start, 0)
  end

  -- The counts as of the window of now, or of their own while a clock that went back is catching up.
  local function at(d, s)
    local start = now - now % d[9]
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
    return start, 0, written + d[9] == start and current or 0
  end

  local function capped(d, start, current, previous, s)
    current = math.min(current, d[6])
    local room = floor_div(d[6] - current, d[9], overlap(d, start))
    return state_of(start, current, math.min(previous, room), s)
  end

  function estimate.read(d, key)
    return read_window(d, key, layout, 3)
  end

  function estimate.carry(d, s)
    if d[5] == 2 then
      return nil
    end
    -- The old limit caps the sum where the clock was set back.
    local start, current, previous = at({ [6] = s.old[1], [9] = d[9] }, s)
    if d[5] == 1 then
      current, previous = ceil_div(current, d[6], s.old[1]), ceil_div(previous, d[6], s.old[1])
    end
    return capped(d, start, current, previous, s)
  end

  function estimate.admit(d, s)
    local start, current, previous = at(d, s)
    current = current + d[7]
    if current > d[6] or current + ceil_div(previous, overlap(d, start), d[9]) > d[6] then
      return nil
    end
    return state_of(start, current, previous, s)
  end

  function estimate.clamp(d, s)
    local start, current, previous = at(d, s)
    return start < s.n[1] and state_of(start, current, previous, s) or s
  end

  function estimate.refused(d, s)
    local start, current, previous = at(d, s)
    return capped(d, start, current + d[7], previous, s)
  end

  function estimate.refund(d, s, charged_us)
    local start, current, previous = s.n[1], s.n[2], s.n[3]
    local windows = current > 0 and 2 or previous > 0 and 1 or 0
    if now >= start + windows * d[9] then
      return s
    end
    local age = floor((start + d[9] - 1 - charged_us) / d[9])
    if age == 0 and current > 0 then
      return state_of(start, math.max(current - d[7], 0), previous, s)
    elseif age == 1 and previous > 0 then
      return state_of(start, current, math.max(previous - d[7], 0), s)
    end
    return s
  end

  -- Of the current window first; then the most of the window before whose share is so much smaller.
  function estimate.grant(d, s)
    local start, current, previous = at(d, s)
    local from_current = math.min(current, d[7])
    local share = ceil_div(previous, overlap(d, start), d[9])
    local from_share = math.min(share, d[7] - from_current)
    if from_share > 0 then
      previous = floor_div(share - from_share, d[9], overlap(d, start))
    end
    return state_of(start, current - from_current, previous, s), from_current + from_share
  end

  function estimate.show(d, s)
    return show_window(d, s, layout)
  end

  function estimate.write(d, key, s)
    store(d, key, estimate.show(d, s), math.max(2 * d[9], s.n[1] + 2 * d[9] - now))
  end

  return estimate
end

local function make_strict()
  local strict = {}

  local function state_of(numbers, s)
    return { n = numbers, born = s and s.born or now }
  end

  -- The counts as of the sub-window of now, as a new array.
  local function at(d, s)
    local newest, kept = floor(now / d[9]), d[10] + 1
    local n = { newest }
    local shift = -kept
    if s then
      shift = s.n[1] - newest
      if shift > 0 and s.n[1] * d[9] - now <= BEHIND_US then
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
        return (n[1] - (i - 2) + d[10] + 1) * d[9]
      end
    end
    return n[1] * d[9]
  end

  function strict.read(d, key)
    return read_window(d, key, d[11], d[10] + 2)
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

  function strict.admit(d, s)
    local n = at(d, s)
    if used(n) + d[7] > d[6] then
      return nil
    end
    n[2] = n[2] + d[7]
    return state_of(n, s)
  end

  function strict.clamp(d, s)
    local n = at(d, s)
    return n[1] < s.n[1] and state_of(n, s) or s
  end

  function strict.refused(d, s)
    local n = at(d, s)
    n[2] = n[2] + d[7]
    return capped(d, n, s)
  end

  function strict.refund(d, s, charged_us)
    local age = s.n[1] - floor(charged_us / d[9])
    if now >= expires(d, s.n) or age < 0 or age > d[10] or s.n[age + 2] == 0 then
      return s
    end
    local n = {}
    for i = 1, #s.n do
      n[i] = s.n[i]
    end
    n[age + 2] = math.max(n[age + 2] - d[7], 0)
    return state_of(n, s)
  end

  function strict.grant(d, s)
    local n, left = at(d, s), d[7]
    for i = 2, #n do
      local given = math.min(n[i], left)
      n[i], left = n[i] - given, left - given
    end
    return state_of(n, s), d[7] - left
  end

  function strict.show(d, s)
    return show_window(d, s, d[11])
  end

  function strict.write(d, key, s)
    store(d, key, strict.show(d, s), math.max(2 * d[9] * d[10], expires(d, s.n) - now))
  end

  return strict
end
