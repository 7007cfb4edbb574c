-- A region's parts of counters: looks at them, and changes them in one step with the record that says whose they are.
--
-- KEYS: per counter its key, that of its record, and that of its use. ARGV: see call.lua; after its own numbers `message` holds per counter
--   its form's place, whose numbers are those it is to have  1 to write  the record that must be there, '' for none  the record to write
--   the server's incarnation that must be  tokens left of a counter that is not there  tokens admitted, and refused, since the caller last said so
-- Reply: now in eight bytes, the server's incarnation in sixteen, per counter 1 written + 2 unreadable + 4 where its numbers are others in one byte, the capacity it has in five
-- (0: it is not there), used, left and out in six each, admitted and refused ever in eight each, the record's length in two, the record; the text of
-- the last error. now alone: a calendar did not reach now.
--
-- What is left of a counter stays as it is: more capacity does not bring tokens, less capacity cuts them off. Counts of windows stay.

local life = string.match(call('INFO', 'replication'), 'master_replid:(%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x)')
if not life then
  return redis.error_reply('UNREADABLE the server does not tell its master_replid')
end
local RECORD_KEEP_MS, USE_KEEP_MS = 2592000000, 86400000 -- bounds.REGION_RECORD_KEEP_MS, bounds.REGION_USE_KEEP_MS

-- Tokens that count in a window now.
local function counted(d, algorithm, s)
  if not s then
    return 0
  end
  local n = algorithm.grant(d, s).n -- as of now: the cost is 0
  if d[1] == 4 then
    return n[2] + ceil_div(n[3], d[9] - math.max(now - n[1], 0), d[9])
  end
  local sum = 0
  for i = 2, d[1] == 3 and 2 or #n do
    sum = sum + n[i]
  end
  return sum
end

-- A bucket of which so many tokens are left, or what is not out if that is less.
local function bucket_with(d, s, left)
  local out = s and s.ledger and s.ledger.out or 0
  local us, rem = divided(d[6] - math.max(0, math.min(left, d[6] - out)), d[10], d[9])
  return { us = now + us, rem = rem, born = s and s.born or now, ledger = s and s.ledger }
end

local parts, problem = { struct.pack('<I8', now) .. life }, ''
local key_at, at = 1, 4
while message[at] do
  local d = form_at(message[at], forms, now, hold_ms)
  local writes, expected, record, expected_life, left_new = message[at + 1], message[at + 2], message[at + 3], message[at + 4], message[at + 5]
  local key, record_key, use_key = KEYS[key_at], KEYS[key_at + 1], KEYS[key_at + 2]
  local algorithm = algorithm_of(d[1])
  local s, err = algorithm.read(d, key)
  local found = pcall_('GET', record_key)
  if type(found) == 'table' then
    err = found.err
  end
  local flags, capacity, used, left, out, admitted, refused = 2, 0, 0, 0, 0, 0, 0
  if err then
    problem, found = err, ''
  else
    found = found or ''
    for i = 1, 2 do
      if message[at + 5 + i] > 0 then
        call('HINCRBY', use_key, i, string.format('%.0f', message[at + 5 + i]))
        call('PEXPIRE', use_key, USE_KEEP_MS)
      end
    end
    local use = call('HMGET', use_key, 1, 2)
    admitted, refused = tonumber(use[1] or 0), tonumber(use[2] or 0)
    local before, other = s, s and s.old
    local own = form_of(d, s)
    flags = other and 4 or 0
    if d[1] == 1 then
      left = left_of(own, s)
    end
    if writes == 1 and found == expected and life == expected_life then
      flags = 1
      call('SET', record_key, record, 'PX', RECORD_KEEP_MS)
      found = record
      if not s then
        s = d[1] == 1 and bucket_with(d, nil, left_new) or algorithm.admit(d, nil)
      elseif other then
        s = d[1] == 1 and bucket_with(d, s, left) or { n = s.n, born = s.born }
      end
      own = d
      if s and (other or not before) then
        algorithm.write(d, key, s)
      end
    end
    if s then
      capacity = own[6]
    end
    if d[1] == 1 then
      left = left_of(own, s)
      used, out = own[6] - left, s and s.ledger and s.ledger.out or 0
    else
      used = counted(own, algorithm, s)
      left = math.max(own[6] - used, 0)
    end
  end
  parts[#parts + 1] = struct.pack('<I1I5I6I6I6I8I8I2', flags, capacity, used, left, out, admitted, refused, #found) .. found
  key_at, at = key_at + 3, at + 8
end
return table.concat(parts) .. problem
