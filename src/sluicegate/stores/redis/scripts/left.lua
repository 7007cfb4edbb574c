-- Tokens left of a bucket under the numbers of `d`.
local function left_of(d, s)
  if not s or s.us < now then
    return d[6]
  end
  local us, rem = now + d[11] - s.us, d[12] - s.rem
  if rem < 0 then
    us, rem = us - 1, rem + d[9]
  end
  if us < 0 then
    return 0
  end
  local whole, rest = divided(us, d[9], d[10])
  return whole + floor((rest + rem) / d[10])
end
