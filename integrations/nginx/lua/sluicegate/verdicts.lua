-- What the script's reply says of each charge: tokens that remain, and times to wait in microseconds.
--
-- The script decides; this only describes the counters that it shows, as sluicegate.algorithms does. Products are computed with
-- 64-bit integers: the rule set's document leaves counters whose numbers are larger to its server.

local byte, sub = string.byte, string.sub
local floor, max, min = math.floor, math.max, math.min

local M = {}

-- An unsigned number below 2^53, least byte first.
local function unsigned(text, at, bytes)
  local value = 0
  for i = at + bytes - 1, at, -1 do
    value = value * 256 + byte(text, i)
  end
  return value
end

-- floor(a * b / c) and ceil(a * b / c) of whole numbers >= 0.
local function floor_of(a, b, c)
  return tonumber((0LL + a) * b / c)
end

local function ceil_of(a, b, c)
  return tonumber(((0LL + a) * b + (c - 1)) / c)
end

-- Each describes a counter's text at `at` (nil: there is none): remaining, and reset of a pass or the wait of a refusal.
local describe = {}

-- Ban: nothing ever passes but what costs nothing.
describe[0] = function()
  return 0, 0
end

-- Token bucket.
describe[1] = function(counter, text, at, now, cost, passes, bounds)
  local tokens, period = counter.tokens, counter.period_us
  local drain = (0LL + counter.limit) * period
  local used = 0LL
  if text then
    used = (0LL + unsigned(text, at + 24, 8) - now) * tokens + unsigned(text, at + 32, 5)
    if used < 0 then
      used = 0LL
    elseif used > drain + (0LL + bounds.clock_behind_us) * tokens then
      used = drain
    end
  end
  local remaining = used < drain and tonumber((drain - used) / period) or 0
  local missing = passes and used or used + (0LL + cost) * period - drain
  return remaining, tonumber((missing + (tokens - 1)) / tokens)
end

-- Fixed window.
describe[3] = function(counter, text, at, now, _, _, bounds)
  local length = counter.window_us
  local start, count = now - (now - counter.origin_us) % length, 0
  if text then
    local written, kept = unsigned(text, at + 12, 8), unsigned(text, at + 20, 5)
    if written > start and written - now <= bounds.clock_behind_us then
      start, count = written, kept
    elseif written >= start then
      count = kept
    end
  end
  return max(counter.limit - count, 0), start + length - now
end

-- Sliding window, estimate: the time at which a refused charge passes.
local function estimate_wait(counter, start, current, previous, now, cost)
  local length = counter.window_us
  local room = counter.limit - cost - current
  if room >= 0 and previous > 0 then
    local overlap = floor_of(room, length, previous)
    if overlap > 0 then
      return start + length - overlap - now
    end
  end
  local overlap = current > 0 and min(floor_of(counter.limit - cost, length, current), length) or length
  return start + 2 * length - overlap - now
end

describe[4] = function(counter, text, at, now, cost, passes, bounds)
  local length = counter.window_us
  local start, current, previous = now - now % length, 0, 0
  if text then
    local written = unsigned(text, at + 12, 8)
    local kept, before = unsigned(text, at + 20, 5), unsigned(text, at + 25, 5)
    if written == start then
      current, previous = kept, before
    elseif written > start and written - now <= bounds.clock_behind_us then
      start, current, previous = written, kept, before
    elseif written > start then
      current = min(kept + before, counter.limit)
    elseif written + length == start then
      previous = kept
    end
  end
  local used = current + ceil_of(previous, length - max(now - start, 0), length)
  local wait = passes and start + length - now or estimate_wait(counter, start, current, previous, now, cost)
  return max(counter.limit - used, 0), wait
end

-- Sliding window, strict. `counts[1]` is the newest sub-window, of number `number`.
local function strict_counts(counter, text, at, now, bounds)
  local step, kept = counter.step_us, counter.sub_windows + 1
  local number, counts = floor(now / step), {}
  for i = 1, kept do
    counts[i] = 0
  end
  if not text then
    return number, counts
  end
  local written = unsigned(text, at + 12, 8)
  local ahead = written - number
  if ahead > 0 and written * step - now <= bounds.clock_behind_us then
    number, ahead = written, 0
  end
  for i = 1, kept do
    -- Sub-windows that have not begun count as the newest; those that have left count no more.
    local place = max(i - ahead, 1)
    if place <= kept then
      counts[place] = counts[place] + unsigned(text, at + 20 + 5 * (i - 1), 5)
    end
  end
  return number, counts
end

describe[5] = function(counter, text, at, now, cost, passes, bounds)
  local number, counts = strict_counts(counter, text, at, now, bounds)
  local used = 0
  for _, count in ipairs(counts) do
    used = used + count
  end
  local remaining = max(counter.limit - used, 0)
  local function leaves(place)
    return (number - (place - 1) + counter.sub_windows + 1) * counter.step_us
  end
  if passes then
    for place, count in ipairs(counts) do
      if count > 0 then
        return remaining, max(leaves(place) - now, 0)
      end
    end
    return remaining, max(number * counter.step_us - now, 0)
  end
  local needed, place = used + cost - counter.limit, #counts
  needed = needed - counts[place]
  while needed > 0 and place > 1 do
    place = place - 1
    needed = needed - counts[place]
  end
  return remaining, leaves(place) - now
end

-- Sliding log: of it the script shows the total, and the one time that matters.
describe[6] = function(counter, text, at, now)
  local total, time = 0, 0
  if text then
    total, time = unsigned(text, at, 5), unsigned(text, at + 5, 8)
  end
  return max(counter.limit - total, 0), total > 0 and time + counter.window_us - now or 0
end

local REFUSED, REFUSED_NONE, FAULT = 0, 3, 5

-- The results of a request's charges, in order, or nil and what kept the script from deciding.
-- A result: counter, rule, passes, remaining, wait_us (nil: it can never pass). `charges`: counter, rule and cost of each.
function M.read(reply, charges, bounds)
  local now, at = unsigned(reply, 1, 8), 9
  local results = { now_us = now }
  if #reply == 8 and #charges > 0 then
    return nil, "the script's calendar does not reach its server's time"
  end
  for i, charge in ipairs(charges) do
    local counter, code = charge.counter, byte(reply, at)
    at = at + 1
    if code == FAULT then
      return nil, sub(reply, at + 1, at + byte(reply, at))
    end
    local shown = code < REFUSED_NONE
    local passes = code ~= REFUSED and code ~= REFUSED_NONE
    local remaining, wait = describe[counter.algorithm](
      counter, shown and reply, at, now, charge.cost, passes, bounds)
    if not passes and charge.cost > counter.limit then
      wait = nil
    end
    results[i] = {
      counter = counter, rule = charge.rule, passes = passes,
      remaining = remaining, wait_us = wait,
    }
    if shown then
      at = at + counter.record
    end
  end
  return results
end

return M
