-- The words all parts use.
--
-- A charge's form `d` (one per rule, tier and cost of the call) is an array of numbers and texts:
--   d[1] algorithm: 0 ban, 1 token bucket, 2 leaky bucket, 3 fixed window, 4 and 5 sliding window (estimate, strict), 6 sliding log
--   d[2] 1 where the usual case may be decided by usual.lua (a cost within 1...capacity)  d[3] 1 for shadow
--   d[4] 1 where a refusal of this charge counts  d[5] keep, scale or reset (0, 1, 2)  d[6] capacity  d[7] cost
--   d[8] the usual time to live in milliseconds, as text  d[9...] numbers of the algorithm, see there

local call, pcall_, packed, unpacked = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, format, sub = math.floor, string.format, string.sub
local EXACT = 9007199254740992
local BEHIND_US = 10000000 -- bounds.CLOCK_BEHIND_US_MAX: a clock this far behind a state is waited for
local UNREADABLE = 'UNREADABLE the key holds something else than a counter'
