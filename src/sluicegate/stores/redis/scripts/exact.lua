-- Exact arithmetic. Lua numbers are doubles, exact up to 2^53; `ceil_div` and `floor_div` give a * b / c for larger products.
--
-- Big numbers are arrays of digits to the base 2^24, least significant first: a product of two digits is below 2^48 and the
-- sums stay below 2^53. They are made only where a product does not fit, and where a counter takes over other numbers.

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

-- floor(a * b / c); a, b, c and the result are below 2^53.
local function floor_div(a, b, c)
  if a * b < EXACT then
    return floor(a * b / c)
  end
  return big_number((big_div(big_mul(big_of(a), big_of(b)), big_of(c))))
end

-- ceil(a * b / c).
local function ceil_div(a, b, c)
  if a * b < EXACT then
    return -floor(-(a * b) / c)
  end
  local quotient, rest = big_div(big_mul(big_of(a), big_of(b)), big_of(c))
  return big_number(quotient) + ((#rest > 1 or rest[1] > 0) and 1 or 0)
end
