-- The windows of a fixed window around now, once per form and call: d.start of the present one, d.stop its end, d.next_stop the
-- end of the next. d[9] length in microseconds; d[10] origin, the start of some window; or d[10] -1 and d[11...15] the starts of five
-- calendar windows in a row, which must hold now in one of the first three. False where they do not.

local function place_window(d, now, hold_ms)
  local length_us, origin_us = d[9], d[10]
  if origin_us >= 0 then
    d.start = now - (now - origin_us) % length_us
    d.stop = d.start + length_us
    d.next_stop = d.stop + length_us
    return true
  end
  for i = 11, 13 do
    if d[i] <= now and now < d[i + 1] then
      d.start, d.stop, d.next_stop = d[i], d[i + 1], d[i + 2]
      d[8] = string.format('%.0f', math.ceil(math.max(2 * length_us, d.next_stop - now) / 1000) + hold_ms)
      return true
    end
  end
  return false
end
