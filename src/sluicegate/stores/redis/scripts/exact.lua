-- Exact arithmetic. Lua numbers are doubles, exact up to 2^53; `floor_div` and `ceil_div` give a * b / c for larger products.

-- Quotient and remainder of a * b / c, for a below 2^53 and b and c below 2^51: long division, with as many binary digits of `a` in
-- a step as leave every sum below 2^53. The quotient is exact where it is below 2^53.
local function divided(a, b, c)
  if a * b < EXACT then
    local quotient = floor(a * b / c)
    return quotient, a * b - quotient * c
  end
  local _, bits = math.frexp(math.max(b, c))
  local base = 2 ^ (52 - bits)
  local digits = {}
  while a > 0 do
    digits[#digits + 1] = a % base
    a = floor(a / base)
  end
  local quotient, rest = 0, 0
  for i = #digits, 1, -1 do
    local sum = rest * base + digits[i] * b
    local step = floor(sum / c)
    rest = sum - step * c
    quotient = quotient * base + step
  end
  return quotient, rest
end

local function floor_div(a, b, c)
  return (divided(a, b, c))
end

local function ceil_div(a, b, c)
  local quotient, rest = divided(a, b, c)
  return rest > 0 and quotient + 1 or quotient
end

local function common_divisor(a, b)
  while b > 0 do
    a, b = b, a % b
  end
  return a
end

-- Big numbers, for a bucket that takes over other numbers and whose products do not fit: arrays of digits to the base 2^24, least
-- significant first. A product of two digits is below 2^48 and the sums stay below 2^53.

local BASE = 16777216

local function big_of(number)
  local digits = {}
  repeat
    local digit = number % BASE
    digits[#digits + 1] = digit
    number = (number - digit) / BASE
  until number == 0
  return digits
end

local function big_trim(digits)
  while #digits > 1 and digits[#digits] == 0 do
    digits[#digits] = nil
  end
  return digits
end

local function big_mul(a, b)
  local product = {}
  for i = 1, #a + #b do
    product[i] = 0
  end
  for i = 1, #a do
    local carry = 0
    for j = 1, #b do
      local sum = product[i + j - 1] + a[i] * b[j] + carry
      local digit = sum % BASE
      product[i + j - 1] = digit
      carry = (sum - digit) / BASE
    end
    product[i + #b] = carry
  end
  return big_trim(product)
end

local function big_add(a, b)
  local sum, carry = {}, 0
  for i = 1, math.max(#a, #b) do
    local digit = (a[i] or 0) + (b[i] or 0) + carry
    carry = digit >= BASE and 1 or 0
    sum[i] = digit - carry * BASE
  end
  if carry > 0 then
    sum[#sum + 1] = carry
  end
  return sum
end

local function big_less(a, b)
  if #a ~= #b then
    return #a < #b
  end
  for i = #a, 1, -1 do
    if a[i] ~= b[i] then
      return a[i] < b[i]
    end
  end
  return false
end

-- Quotient and remainder, one bit at a time: slow (tens of microseconds) and short.
local function big_div(a, b)
  local quotient, rest = {}, { 0 }
  for i = #a, 1, -1 do
    local digit, found = a[i], 0
    for place = 23, 0, -1 do
      local weight = 2 ^ place
      local bit = 0
      if digit >= weight then
        digit, bit = digit - weight, 1
      end
      rest = big_add(rest, rest)
      rest[1] = rest[1] + bit -- doubled, so even: no carry
      if not big_less(rest, b) then
        for j = 1, #rest do
          rest[j] = rest[j] - (b[j] or 0)
          if rest[j] < 0 then
            rest[j], rest[j + 1] = rest[j] + BASE, rest[j + 1] - 1
          end
        end
        big_trim(rest)
        found = found + weight
      end
    end
    quotient[i] = found
  end
  return big_trim(quotient), rest
end

local function big_number(digits)
  local number = 0
  for i = #digits, 1, -1 do
    number = number * BASE + digits[i]
  end
  return number
end
