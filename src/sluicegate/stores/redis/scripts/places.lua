-- Where the packed layout keeps a counter, and how it is written there.
--
-- Counters of many clients are fields of one hash. Its key is the counter's own without the last eight bytes, the client's digest, which
-- is the field; then the length of an epoch in seconds and the number of the epoch:
--   rl1:<namespace>:{p1/<buckets>/<bucket>}:<rule>:<algorithm>:<window>:<generation>:<seconds>:<epoch>
-- An epoch is at least as long as a state of the counter can matter, so what is older than the epoch before has recovered. A counter
-- stands in one place at a time, and moves to the hash of now with the first write of an epoch. It may also stand under its own key,
-- as the plain layout has it: while parts of it are granted in advance, and where its numbers do not fit into a hash.
--
-- The first field of a bucket's hash, `o`, says whether hashes of epochs of another length may have counters of it (1) or not (0).
--
-- A form's d[2] is the place p, positive for the usual case, of
--   d[p] seconds of an epoch, 0 where no hash is used  d[p + 1] the largest time of a value  d[p + 2] head of a value
--   d[p + 3] head of a plain text  d[p + 4] layout of a value  d[p + 5] bytes of a value
--   d[p + 6] 1 where the counter is kept under its own key  d[p + 7] where a layout before this one may have it: 0 nowhere,
--   1 under a key of its own, 2 in hashes too  d[p + 8], d[p + 9] 0; the epoch of now and the end of the hash's key, once they are known
-- Value: bytes of each number of the quota, as octal digits in two bytes, these numbers, and the state: times from two epochs before
-- the hash's own, in as few bytes as hold four epochs; counts and remainders in as many as the number they stay below.

-- The plain text of a value that was written under other numbers than those of `d`, or in epochs of another length; nil where it cannot be one.
local function converted(d, value, seconds, epoch)
  local packed, unpacked, floor = struct.pack, struct.unpack, math.floor
  local code = d[1]
  if #value < 2 then
    return nil
  end
  local width = seconds == 1000 and 4 or seconds <= 100000 and 5 or 6
  local count, digits = code == 1 and 3 or code == 2 and 5 or 1, (unpacked('<I2', value))
  local bytes, layout = {}, '<'
  for i = count, 1, -1 do
    bytes[i] = digits % 8
    digits = floor(digits / 8)
    if bytes[i] == 0 then
      return nil
    end
  end
  for i = 1, count do
    layout = layout .. 'I' .. bytes[i]
  end
  local last = 'I' .. bytes[code <= 2 and 2 or 1]
  local rest = '<I' .. width .. 'I' .. width .. last
  if code == 2 then
    rest = rest .. 'I' .. width + 1
  elseif code >= 4 then
    rest = rest .. string.rep(last, code == 4 and 1 or d[10])
  end
  local at = 3 + struct.size(layout)
  if #value ~= at - 1 + struct.size(rest) then
    return nil
  end
  local numbers = { unpacked(layout, value, 3) }
  local prefix = packed(code == 1 and '<I5I5I7' or code == 2 and '<I5I5I7I6I1' or '<I5', unpack(numbers, 1, count))
  local base = (epoch - 2) * seconds * 1000000
  local n = { unpacked(rest, value, at) }
  n[1] = n[1] + base
  if code == 5 then
    n[2] = n[2] + floor(base / d[9])
    return prefix .. packed('<I7I8' .. string.rep('I5', d[10] + 1), unpack(n, 1, d[10] + 3))
  end
  n[2] = n[2] + base
  if code == 4 then
    return prefix .. packed('<I7I8I5I5', n[1], n[2], n[3], n[4])
  elseif code == 2 then
    local mark = floor(n[4] / 2) + base
    return prefix .. packed('<I7I8I5i8', n[1], n[2], n[3], n[4] % 2 == 1 and -1 - mark or mark)
  end
  return prefix .. packed('<I7I8I5', n[1], n[2], n[3])
end

-- The same of a value in the hash of an epoch of the usual length, quickly where the numbers are the same.
local function expanded(d, value, p, epoch)
  local packed, code = struct.pack, d[1]
  if #value ~= d[p + 5] then
    return converted(d, value, d[p], epoch)
  end
  local base = (epoch - 2) * d[p] * 1000000
  if code == 5 then
    local n = { struct.unpack(d[p + 4], value) }
    if n[1] ~= d[p + 2] then
      return converted(d, value, d[p], epoch)
    end
    return d[p + 3] .. packed(
      '<I7I8' .. string.rep('I5', d[10] + 1), n[2] + base, n[3] + math.floor(base / d[9]), unpack(n, 4, d[10] + 4)
    )
  end
  local head, born, time, count, more = struct.unpack(d[p + 4], value)
  if head ~= d[p + 2] then
    return converted(d, value, d[p], epoch)
  elseif code == 1 or code == 3 then
    return d[p + 3] .. packed('<I7I8I5', born + base, time + base, count)
  elseif code == 4 then
    return d[p + 3] .. packed('<I7I8I5I5', born + base, time + base, count, more)
  end
  local mark = math.floor(more / 2) + base
  return d[p + 3] .. packed('<I7I8I5i8', born + base, time + base, count, more % 2 == 1 and -1 - mark or mark)
end

-- The value that stands for a plain text under the numbers of `d` in the hash of an epoch. A time before its base no longer matters.
local function shrunk(d, text, p, epoch)
  local packed, unpacked, code = struct.pack, struct.unpack, d[1]
  local base, most, at = (epoch - 2) * d[p] * 1000000, d[p + 1], #d[p + 3] + 1
  local born, time, count, more, n
  if code == 1 or code == 3 then
    born, time, count = unpacked('<I7I8I5', text, at)
    born, time = born - base, time - base
  elseif code == 5 then
    n = { unpacked('<I7I8' .. string.rep('I5', d[10] + 1), text, at) }
    born, time = n[1] - base, n[2] - math.floor(base / d[9])
  else
    born, time, count, more = unpacked(code == 2 and '<I7I8I5i8' or '<I7I8I5I5', text, at)
    born, time = born - base, time - base
  end
  born = born < 0 and 0 or born > most and most or born
  time = time < 0 and 0 or time > most and most or time
  if code == 1 or code == 3 then
    return packed(d[p + 4], d[p + 2], born, time, count)
  elseif code == 4 then
    return packed(d[p + 4], d[p + 2], born, time, count, more)
  elseif code == 5 then
    return packed(d[p + 4], d[p + 2], born, time, unpack(n, 3, d[10] + 3))
  end
  -- A charge so old that its time is lost cannot be given back any more.
  local mark = (more < 0 and -1 - more or more) - base
  local given = (more < 0 or mark < 0) and 1 or 0
  mark = mark < 0 and 0 or mark > most and most or mark
  return packed(d[p + 4], d[p + 2], born, time, count, 2 * mark + given)
end

-- The ends of the keys of hashes around now, by the length of their epochs: of the next, of now, of the one before. Made once per call.
local tails = {}
local function tails_of(seconds, now)
  local found = tails[seconds]
  if not found then
    local epoch, format = math.floor(now / (seconds * 1000000)), string.format
    found = {
      format('%d:%d', seconds, epoch + 1), format('%d:%d', seconds, epoch), format('%d:%d', seconds, epoch - 1), epoch,
    }
    tails[seconds] = found
  end
  return found
end

-- The keys of hashes around now whose epochs have another length than `seconds`. The length of a bucket's epochs follows from its numbers, which
-- may have been others.
local function others_of(base, seconds, now)
  local names = {}
  for power = 3, 7 do
    if 10 ^ power ~= seconds then
      local ends, at = tails_of(10 ^ power, now), #names
      names[at + 1], names[at + 2], names[at + 3] = base .. ends[1], base .. ends[2], base .. ends[3]
    end
  end
  return names
end

-- Begins a hash. Where others are found that may have its counters, each is told of the other.
local function begin(d, p, base, hash, now, hold_ms)
  local call, seconds = redis.call, d[p]
  if d[1] <= 2 then
    local names = others_of(base, seconds, now)
    local several = call('EXISTS', unpack(names)) > 0
    call('HSET', hash, 'o', several and '1' or '0')
    for i = 1, several and #names or 0 do
      if redis.pcall('HLEN', names[i]) ~= 0 then
        redis.pcall('HSET', names[i], 'o', '1')
      end
    end
  end
  return math.ceil(((epoch_of(d, p, now) + 2) * seconds * 1000000 - now) / 1000) + hold_ms
end

-- A counter that is not where it is first looked for: its text and place, or nil, or nil, nil and an error.
local function search(d, key, old, now, p)
  local try, sub = redis.pcall, string.sub
  local base, code = sub(key, 1, -9), d[1]
  local field = sub(key, -8)
  local err

  -- `which`: 1 the next epoch, 2 that of now, 3 the one before.
  local function inside(base, seconds, which)
    local ends = tails_of(seconds, now)
    local hash = base .. ends[which]
    local value = try('HGET', hash, field)
    if type(value) == 'table' then
      err = err or value.err
    elseif value then
      local epoch = ends[4] + 2 - which
      local text = seconds == d[p] and expanded(d, value, p, epoch) or converted(d, value, seconds, epoch)
      if text then
        return text, hash
      end
      err = err or 'UNREADABLE the key holds something else than a counter'
    end
  end

  -- The newest in epochs of one length: a clock that went back has left it in the next.
  local function among(base, seconds)
    for which = 1, 3 do
      local text, hash = inside(base, seconds, which)
      if text then
        return text, hash
      end
    end
  end

  local function under(name)
    local text = try('GET', name)
    if type(text) == 'table' then
      err = err or text.err
    elseif text then
      return text, name
    end
  end

  local text, place
  if d[p] > 0 then
    local ahead = base .. tails_of(d[p], now)[1]
    if d[p + 6] == 1 then
      text, place = inside(base, d[p], 1)
      if not text then
        text, place = inside(base, d[p], 2)
      end
    elseif try('EXISTS', ahead, key) ~= 0 then
      text, place = inside(base, d[p], 1)
      if not text then
        -- Before older hashes: one that was too old to be looked at when the counter moved to its own key may still be there.
        text, place = under(key)
      end
    end
    if not text then
      text, place = inside(base, d[p], 3)
    end
  end
  if not text and code <= 2 and (d[p] == 0 or try('HGET', base .. tails_of(d[p], now)[2], 'o') ~= '0')
      and try('EXISTS', unpack(others_of(base, d[p], now))) ~= 0 then
    for power = 3, 7 do
      if not text and 10 ^ power ~= d[p] then
        text, place = among(base, 10 ^ power)
      end
    end
  end
  if not text and d[p + 7] > 0 then
    field = sub(old, -8)
    if d[p + 7] == 2 and code <= 2 then
      for power = 3, 7 do
        if not text then
          text, place = among(sub(old, 1, -9), 10 ^ power)
        end
      end
    elseif d[p + 7] == 2 and d[p] > 0 then
      text, place = among(sub(old, 1, -9), d[p])
    end
    if not text then
      text, place = under(old)
    end
  end
  if err then
    return nil, nil, err
  end
  return text, place
end

-- A counter's text as the plain layout has it, and where it stands: the name of a hash or of its own key. `old`: its key in a layout before.
local function look(d, key, old, now)
  local p, text, place = d[2], nil, nil
  p = p < 0 and -p or p
  if d[p + 6] == 1 then
    text, place = redis.pcall('GET', key), key
  else
    local epoch, tail = epoch_of(d, p, now)
    place = string.sub(key, 1, -9) .. tail
    text = redis.pcall('HGET', place, string.sub(key, -8))
    if text and type(text) ~= 'table' then
      text = expanded(d, text, p, epoch)
      if not text then
        return nil, nil, 'UNREADABLE the key holds something else than a counter'
      end
    end
  end
  if type(text) == 'table' then
    return nil, nil, text.err
  elseif text then
    return text, place
  elseif d[1] < 6 then
    return search(d, key, old, now, p)
  elseif old and old ~= key and redis.call('EXISTS', old) == 1 then
    -- A log is never in a hash: it changes its name.
    redis.call('RENAME', old, key)
    text = redis.pcall('GET', key)
    if type(text) == 'table' then
      return nil, nil, text.err
    end
    return text, key
  end
end

-- Takes a counter away from a place that is the name of a hash or of a key of its own, `key` or `old`.
local function take(key, old, place)
  if place == key or place == old then
    redis.call('DEL', place)
  elseif redis.call('HDEL', place, string.sub(key, -8)) == 0 and old then
    redis.call('HDEL', place, string.sub(old, -8))
  end
end

-- Writes a counter's text, `apart` under its own key, and takes it from where it stood. A hash gets its end with its first field.
local function put(d, key, old, text, ttl_ms, now, hold_ms, place, apart)
  if apart then
    redis.call('SET', key, text, 'PX', ttl_ms)
    if place and place ~= key then
      take(key, old, place)
    end
    return
  end
  local p = d[2]
  p = p < 0 and -p or p
  local epoch, tail = epoch_of(d, p, now)
  local base, field = string.sub(key, 1, -9), string.sub(key, -8)
  local hash = base .. tail
  local left_ms = place ~= hash and redis.call('PTTL', hash) < 0 and begin(d, p, base, hash, now, hold_ms)
  redis.call('HSET', hash, field, shrunk(d, text, p, epoch))
  if left_ms then
    redis.call('PEXPIRE', hash, string.format('%.0f', left_ms))
  end
  if place and place ~= hash then
    take(key, old, place)
  end
end
