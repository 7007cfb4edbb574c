-- One process says that it is here, and learns how many are.
--
-- KEYS[1]  a sorted set: processes by the server's time, in milliseconds, of their last heartbeat
-- ARGV[1]  the process
-- ARGV[2]  milliseconds for which a heartbeat is believed
--
-- Replies with how many processes are here. What a clock that was set back left in the future is dropped too.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - kept))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + kept), '+inf')
redis.call('PEXPIRE', KEYS[1], 2 * kept)
return redis.call('ZCARD', KEYS[1])
