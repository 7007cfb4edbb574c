-- One holder's step on many counters: reports, returns and a new lease of each, in the order of sluicegate.algorithms.leasing.
--
-- KEYS: per counter its key, and of all but token buckets that of its ledger. ARGV: see call.lua; after its own numbers `message` holds
--   holder  how long a lease is waited for (us)  and then per counter: its form's place  1 for settled, or of which life  1 to retire + 2 cautious
--   serial of the wished lease, 0 for none  want  share  number of reports  and per report: serial, spent, 1 where closed
-- Reply: now in eight bytes, the server's incarnation in sixteen, per counter 1 wanted + 2 lost + 4 unreadable in one byte, granted in
-- five, how long that lasts in eight, level and out in six each, leases in two; the text of the last error. now alone: a calendar did not reach now.
--
-- The incarnation is read in the same step as the counters: nobody can have seen an older one.

local LEASES_MAX = 1024 -- bounds.LEASES_PER_COUNTER_MAX
local LOST = '--------'
local life = string.match(call('INFO', 'replication'), 'master_replid:(%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x)')
if not life then
  return redis.error_reply('UNREADABLE the server does not tell its master_replid')
end
local holder, hold_us = message[4], message[5]

local function cost_of(d, tokens)
  d[7] = tokens
  if d[1] == 1 then
    d[13], d[14] = divided(tokens, d[10], d[9])
  end
end

-- Tokens left.
local function level_of(d, algorithm, s)
  if not s then
    return d[6]
  elseif d[1] == 1 then
    return left_of(d, s)
  elseif d[1] == 6 then
    return math.max(d[6] - s.total, 0)
  end
  cost_of(d, 0)
  local n = algorithm.grant(d, s).n -- as of now
  local used = n[2]
  if d[1] == 4 then
    used = used + ceil_div(n[3], d[9] - math.max(now - n[1], 0), d[9])
  elseif d[1] == 5 then
    for i = 3, #n do
      used = used + n[i]
    end
  end
  return math.max(d[6] - used, 0)
end

-- Start and end of the window in which a state counts.
local function window_of(d, s)
  local start = s.n[1]
  if d[1] == 5 then
    return start * d[9], (start + 1) * d[9]
  elseif d[1] == 4 or d[10] >= 0 then
    return start, start + d[9]
  end
  return start, start > d.start and d.next_stop or d.stop
end

-- What a log does is dated by the end of a lease: its functions see that as their now.
local function dated(d, act, ...)
  if d[1] ~= 6 then
    return act(...)
  end
  local real = now
  now = now + hold_us
  local s = act(...)
  now = real
  return s
end

local function ledger_new()
  return { life = life, out = 0, first = EXACT, short = 0, born = 0, entries = '' }
end

local function ledger_add(ledger, who, serial, granted, ends, place)
  ledger.entries = ledger.entries .. packed('<c8I6I5I5I8I8', who, serial, granted, 0, ends, place)
  ledger.out, ledger.first = ledger.out + granted, math.min(ledger.first, ends)
end

-- Where the holder's lease of this serial stands.
local function ledger_find(ledger, serial)
  local id, at = packed('<c8I6', holder, serial), 0
  repeat
    at = string.find(ledger.entries, id, at + 1, true)
  until not at or at % LEDGER_ENTRY == 1
  return at
end

-- All of a counter used as of now, and of a bucket all of it out as well.
local function lost_of(d, algorithm, s)
  local ledger = ledger_new()
  cost_of(d, d[6])
  if d[1] ~= 1 then
    return dated(d, algorithm.refused, d, s), ledger
  end
  ledger_add(ledger, LOST, 0, d[6], now + hold_us, 0)
  return { us = now + d[11], rem = d[12], born = s and s.born or now, ledger = ledger }, ledger
end

-- A report of a lease, and its end where the holder has closed it.
local function reported(d, algorithm, s, ledger, at, spent, closed)
  local entries = ledger.entries
  local granted, known, _, place = unpacked('<I5I5I8I8', entries, at + 14)
  spent = math.max(known, math.min(spent, granted))
  ledger.out = ledger.out - (spent - known)
  if not closed then
    ledger.entries = sub(entries, 1, at + 18) .. packed('<I5', spent) .. sub(entries, at + 24)
    return s
  end
  ledger.entries = sub(entries, 1, at - 1) .. sub(entries, at + LEDGER_ENTRY)
  local rest = granted - spent
  ledger.out = ledger.out - rest
  if #ledger.entries == 0 then
    ledger.first = EXACT
  end
  if rest == 0 or not s then
    return s
  end
  cost_of(d, rest)
  if d[1] ~= 1 then
    return algorithm.refund(d, s, place, place, EXACT)
  end
  local us, rem = s.us - d[13], s.rem - d[14]
  if rem < 0 then
    us, rem = us - 1, rem + d[9]
  end
  s = { us = us, rem = rem, born = s.born, ledger = ledger }
  local least_us, least_rem = divided(math.min(ledger.out, d[6]), d[10], d[9])
  least_us = now + least_us
  if #ledger.entries > 0 and (us < least_us or (us == least_us and rem < least_rem)) then
    s.us, s.rem = least_us, least_rem
  end
  return s
end

-- A new lease of so many tokens, which fit: the state, where it counts, its end.
local function taken(d, algorithm, s, size)
  cost_of(d, size)
  local after = dated(d, algorithm.admit, d, s)
  local ends = now + hold_us
  if d[1] == 1 then
    return after, 0, ends
  elseif d[1] == 6 then
    return after, after.last and math.max(after.last, ends) or ends, ends
  end
  local start, stop = window_of(d, after)
  return after, start, math.min(ends, stop)
end

-- The ledger of a window or log, which has a key of its own. It is void where its counter is another one than it was made for.
local function ledger_at(key, born)
  arrive(key)
  local text = pcall_('GET', key)
  if type(text) == 'table' then
    return nil, text.err
  elseif not text then
    return nil
  end
  local ledger = ledger_of(text, 1)
  if not ledger then
    return nil, UNREADABLE
  end
  write_off(ledger)
  if #ledger.entries > 0 and born ~= ledger.born then
    return nil
  end
  return ledger
end

local function write_all(d, algorithm, key, ledger_key, s, ledger, retire, before)
  apart = not (retire and #ledger.entries == 0)
  if retire and #ledger.entries == 0 then
    if s and (s ~= before or not ledger_key or misplaced(d, key)) then
      s.ledger = nil
      algorithm.write(d, key, s)
    elseif not s and not ledger_key then
      drop(d, key)
    end
    if ledger_key then
      call('DEL', ledger_key)
    end
    return
  end
  if not ledger_key then
    s = s or { us = 0, rem = 0, born = now }
    s.ledger = ledger
    algorithm.write(d, key, s)
    return
  end
  ledger.born = s and s.born or 0
  if s and (s ~= before or misplaced(d, key)) then
    dated(d, algorithm.write, d, key, s)
    if d[1] == 6 then
      -- Its entries may stand at the end of leases.
      call('PEXPIRE', key, lasting(math.max(2 * d[9], (s.last or now) + d[9] - now)))
    end
  end
  call('SET', ledger_key, ledger_text(ledger), 'PX', lasting(LEASED_KEEP_US))
end

local parts, problem = { struct.pack('<I8', now) .. life }, ''
local key_at, at = 1, 6
while message[at] do
  local d = form_at(message[at], forms, now, hold_ms)
  local settled, manner, serial, want, share = message[at + 1], message[at + 2], message[at + 3], message[at + 4], message[at + 5]
  local reports = message[at + 6]
  local algorithm = algorithm_of(d[1])
  local key, ledger_key = KEYS[key_at], d[1] ~= 1 and KEYS[key_at + 1]
  key_at = key_at + (ledger_key and 2 or 1)
  local s, err = algorithm.read(d, key)
  local before, born = s, s and s.born or 0
  d = form_of(d, s)
  if s and s.old then
    s = algorithm.carry(d, s)
    if not s then
      drop(d, key)
    end
  end
  local ledger
  if ledger_key and not err then
    ledger, err = ledger_at(ledger_key, born)
  elseif s then
    ledger = s.ledger
  end
  local flags, granted, lasts, level, out, leases = 4, 0, 0, 0, 0, 0
  local answers_for = settled == 1 or settled == life
  if err then
    problem = err
  elseif not ledger and not answers_for and manner >= 2 then
    -- It may be lost, and whoever asks does not want that to be said: nothing is changed, but changed numbers hold from any look on.
    if s and s ~= before then
      algorithm.write(d, key, s)
    end
    flags, level = 2, level_of(d, algorithm, s and algorithm.clamp(d, s))
  else
    local known, lost = ledger and ledger.life == life, false
    if not known then
      if ledger or not answers_for then
        lost = true
        s, ledger = lost_of(d, algorithm, s)
      else
        ledger = ledger_new()
      end
    end
    if s then
      s = algorithm.clamp(d, s)
    end
    for i = at + 7, at + 6 + 3 * reports, 3 do
      local place = ledger_find(ledger, message[i])
      if place then
        s = reported(d, algorithm, s, ledger, place, message[i + 1], message[i + 2] == 1)
      end
    end
    local place = serial > 0 and ledger_find(ledger, serial)
    level = level_of(d, algorithm, s)
    if place then
      local ends
      granted, known, ends = unpacked('<I5I5I8', ledger.entries, place + 14)
      lasts = ends - now
    elseif serial > 0 and want > 0 then
      local size = math.min(level, math.max(1, math.min(want, floor(level / share))))
      if size == 0 then
        ledger.short = now
      elseif #ledger.entries < LEASES_MAX * LEDGER_ENTRY then
        local where, ends
        s, where, ends = taken(d, algorithm, s, size)
        ledger_add(ledger, holder, serial, size, ends, where)
        granted, lasts, level = size, ends - now, level - size
      end
    end
    out, leases = ledger.out, #ledger.entries / LEDGER_ENTRY
    flags = (out > 0 and now - ledger.short < hold_us and 1 or 0) + (lost and 2 or 0)
    write_all(d, algorithm, key, ledger_key, s, ledger, manner % 2 == 1, before)
  end
  parts[#parts + 1] = struct.pack('<I1I5I8I6I6I2', flags, granted, lasts, level, out, leases)
  at = at + 7 + 3 * reports
end
return table.concat(parts) .. problem
