-- The call: its argument and its time.
--
-- A counter's definition `d` (one per rule and tier of the call):
--   d[1] algorithm  d[2] "<numbers>|"  d[3] 1 for shadow  d[4] 1 where refusals count  d[5] keep, scale or reset  d[6] capacity
--   d[7...] numbers of the algorithm, see there

local call, pcall_ = redis.call, redis.pcall
local match, sub, floor, format = string.match, string.sub, math.floor, string.format
local EXACT = 9007199254740992
local BEHIND_US = 10000000 -- bounds.CLOCK_BEHIND_US_MAX: a clock this far behind a state is waited for
local message = cmsgpack.unpack(ARGV[1])
local now, hold_ms = message[1], message[2]
if now == 0 then
  -- Read once: some servers let it advance inside a script.
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
