-- The call: ARGV[1] is a row of packed numbers, `message`, that begins with
--   time of the call, 0 to read the server's clock  milliseconds added to every time to live (0 but for tests)
--   1 where windows of a calendar are among the forms
-- and each further argument is the form of a charge, unpacked when it is first needed.
--
-- Functions that every call makes take what they need as arguments: a variable of an outer function costs more than deciding does.

local call = redis.call
local message, forms = { cmsgpack.unpack(ARGV[1]) }, {}
if type(message[1]) == 'table' then
  message = message[1] -- more numbers than Lua's stack holds come as an array
end
local now, hold_ms = message[1], message[2]
if now == 0 then
  -- Read once: some servers let it advance inside a script.
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function form_at(place, forms, now, hold_ms)
  local d = forms[place]
  if not d then
    d = { cmsgpack.unpack(ARGV[place]) }
    forms[place] = d
    if d[1] == 3 then
      d.placed = place_window(d, now, hold_ms)
    end
  end
  return d
end

if message[3] == 1 then
  for place = 2, #ARGV do
    if form_at(place, forms, now, hold_ms).placed == false then
      return struct.pack('<I8', now)
    end
  end
end
