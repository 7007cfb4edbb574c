-- Sliding log, as sluicegate.algorithms has it. d[9]: the window in microseconds.
--
-- Text: limit, born, total of the live tokens, bytes of entries that have left; then time and count of every moment at which hits were
-- accepted, oldest first.
--
-- A charge of a log that may be long touches the ends of the text and what has left the window; what has left is cut off when it is
-- the larger part. What is rare (other numbers, a clock that was set back, a refund, a refusal that counts) reads all and writes it anew.
-- State, in one of two forms, both with total (live tokens) and last, last_count (the newest entry, where there is a live one):
--   of a text as it stands: size, gone (bytes of entries that have left), key; `add`, tokens to append
--   to be written anew: `all`, times and counts in one array; `raw`, those of all entries as they were read; set_back, where the clock
--   was set back and the newest entries were taken to now

local function make_log()
  local log = {}
  local HEAD, ENTRY, BLOCK = 21, 12, 768
  local CUT = 8 * BLOCK

  local function whole(items, born)
    local total = 0
    for i = 2, #items, 2 do
      total = total + items[i]
    end
    return { all = items, total = total, born = born, last = items[#items - 1], last_count = items[#items] }
  end

  -- Times and counts from a place in the text on; nil where one cannot be.
  local function items_from(key, at)
    local text = call('GETRANGE', key, at, -1)
    local items = {}
    for i = 1, #text, ENTRY do
      local time, count = unpacked('<I7I5', text, i)
      if time >= EXACT or count < 1 then
        return nil
      end
      items[#items + 1], items[#items + 2] = time, count
    end
    return items
  end

  -- Entries later than now are taken to now; entries that have left the window are dropped.
  local function live(d, items, set_back)
    local kept = {}
    local late = 0
    for i = 1, #items, 2 do
      local time, count = items[i], items[i + 1]
      if set_back and time >= now then
        late = late + count
      elseif time > now - d[9] then
        kept[#kept + 1], kept[#kept + 2] = time, count
      end
    end
    if late > 0 then
      kept[#kept + 1], kept[#kept + 2] = now, late
    end
    return kept
  end

  local function newest(items, limit)
    local surplus, first = -limit, 1
    for i = 2, #items, 2 do
      surplus = surplus + items[i]
    end
    if surplus <= 0 then
      return items
    end
    while surplus >= items[first + 1] do
      surplus = surplus - items[first + 1]
      first = first + 2
    end
    local kept = {}
    for i = first, #items do
      kept[#kept + 1] = items[i]
    end
    kept[2] = kept[2] - surplus
    return kept
  end

  -- A new array with one more hit, at the latest time in it if the clock is behind that.
  local function appended(items, cost)
    local after = {}
    for i = 1, #items do
      after[i] = items[i]
    end
    if #after > 0 and after[#after - 1] >= now then
      after[#after] = after[#after] + cost
    else
      after[#after + 1], after[#after + 2] = now, cost
    end
    return after
  end

  -- The live entries, whatever form the state has.
  local function loaded(d, s)
    return s.all or live(d, items_from(s.key, HEAD + s.gone) or {}, false)
  end

  -- Leaves out what has left the window, block by block; false where an entry cannot be.
  local function skip_gone(d, s)
    while s.total > 0 do
      local at = HEAD + s.gone
      local block = call('GETRANGE', s.key, at, at + BLOCK - 1)
      for i = 1, #block, ENTRY do
        local time, count = unpacked('<I7I5', block, i)
        if time >= EXACT or count < 1 then
          return false
        elseif time > now - d[9] then
          return true
        end
        s.total, s.gone = s.total - count, s.gone + ENTRY
      end
      if #block < BLOCK then
        break
      end
    end
    return s.total == 0 and HEAD + s.gone == s.size
  end

  function log.read(d, key)
    arrive(key)
    local head = pcall_('GETRANGE', key, 0, HEAD - 1)
    if type(head) == 'table' then
      return nil, head.err
    elseif #head == 0 and call('EXISTS', key) == 0 then
      return nil
    elseif #head < HEAD then
      return nil, UNREADABLE
    end
    local limit, born, total, gone = unpacked('<I5I7I5I4', head)
    local size = call('STRLEN', key)
    if limit < 1 or born >= EXACT or (size - HEAD) % ENTRY ~= 0 or gone % ENTRY ~= 0 or HEAD + gone > size
        or (total == 0) ~= (HEAD + gone == size) then
      return nil, UNREADABLE
    end
    local s = { born = born, total = total, gone = gone, size = size, key = key }
    local other, set_back = limit ~= d[6], false
    if total > 0 then
      s.last, s.last_count = unpacked('<I7I5', call('GETRANGE', key, -ENTRY, -1))
      if s.last >= EXACT or s.last_count < 1 then
        return nil, UNREADABLE
      end
      set_back = s.last - now > BEHIND_US
    end
    if other or set_back then
      local items = items_from(key, HEAD + gone)
      if not items or whole(items).total ~= total then
        return nil, UNREADABLE
      end
      s = whole(live(d, items, set_back), born)
      s.raw, s.set_back = items, set_back
    elseif not skip_gone(d, s) then
      return nil, UNREADABLE
    end
    if s.total == 0 then
      s.last, s.last_count = nil, nil
    end
    if other then
      s.old = { limit }
    end
    return s
  end

  function log.carry(d, s)
    local items = s.all -- read whole, as its numbers are others
    if d[5] == 2 then
      return nil
    end
    if d[5] == 1 then
      -- Sums counted from the newest, multiplied and rounded up: newer tokens stay longer.
      local backwards, sum, before = {}, 0, 0
      for i = #items - 1, 1, -2 do
        sum = sum + items[i + 1]
        local share = ceil_div(sum, d[6], s.old[1])
        if share > before then
          backwards[#backwards + 1], backwards[#backwards + 2] = share - before, items[i]
        end
        before = share
      end
      items = {}
      for i = #backwards, 1, -1 do
        items[#items + 1] = backwards[i]
      end
    end
    items = newest(items, d[6])
    return #items > 0 and whole(items, s.born) or nil
  end

  function log.admit(d, s)
    if (s and s.total or 0) + d[7] > d[6] then
      return nil
    elseif not s or s.all then
      return whole(appended(s and s.all or {}, d[7]), s and s.born or now)
    end
    return {
      born = s.born, total = s.total + d[7], gone = s.gone, size = s.size, key = s.key,
      last = s.last, last_count = s.last_count, add = d[7],
    }
  end

  function log.clamp(_, s)
    return s.set_back and whole(s.all, s.born) or s
  end

  function log.refused(d, s)
    return whole(newest(appended(s and loaded(d, s) or {}, d[7]), d[6]), s and s.born or now)
  end

  function log.refund(d, s, charged_us)
    if now - charged_us >= d[9] or not s.last then
      return s
    end
    local items = s.raw or loaded(d, s) -- as it was written: a charge is known by its time
    local kept, found = {}, false
    for i = 1, #items, 2 do
      local time, count = items[i], items[i + 1]
      if time == charged_us then
        found = true
        count = count - math.min(d[7], count)
      end
      if count > 0 then
        kept[#kept + 1], kept[#kept + 2] = time, count
      end
    end
    return found and whole(kept, s.born) or s
  end

  -- The newest hits leave the log.
  function log.grant(d, s)
    local left = math.min(s.total, d[7])
    local given, kept = left, {}
    local items = left > 0 and loaded(d, s) or {}
    for i = #items - 1, 1, -2 do
      local gone = math.min(items[i + 1], left)
      left = left - gone
      if items[i + 1] > gone then
        kept[#kept + 1], kept[#kept + 2] = items[i + 1] - gone, items[i]
      end
    end
    local after = {}
    for i = #kept, 1, -1 do
      after[#after + 1] = kept[i]
    end
    return whole(after, s.born), given
  end

  function log.write(d, key, s)
    if s.add and s.last and s.last >= now then
      s.last_count = s.last_count + s.add
      call('SETRANGE', key, s.size - 5, packed('<I5', s.last_count))
    elseif s.add then
      s.last, s.last_count, s.size = now, s.add, s.size + ENTRY
      call('APPEND', key, packed('<I7I5', now, s.add))
    end
    local ttl_us = math.max(2 * d[9], (s.last or now) + d[9] - now)
    if s.all then
      local parts = { packed('<I5I7I5I4', d[6], s.born, s.total, 0) }
      for i = 1, #s.all, 2 do
        parts[#parts + 1] = packed('<I7I5', s.all[i], s.all[i + 1])
      end
      store(d, key, table.concat(parts), ttl_us)
    elseif s.gone > CUT and 2 * s.gone > s.size then
      local kept = call('GETRANGE', key, HEAD + s.gone, -1)
      store(d, key, packed('<I5I7I5I4', d[6], s.born, s.total, 0) .. kept, ttl_us)
      s.size, s.gone = s.size - s.gone, 0
    else
      call('SETRANGE', key, 0, packed('<I5I7I5I4', d[6], s.born, s.total, s.gone))
      call('PEXPIRE', key, lasting(ttl_us))
    end
  end

  -- What describes the answer: the total, and the time of the entry that it depends on. On a refusal, so many tokens must leave.
  function log.show(d, s, refused)
    if s.total == 0 then
      return packed('<I5I8', 0, 0)
    end
    local needed = refused and s.total + d[7] - d[6]
    if not needed or needed > s.total then
      return packed('<I5I8', s.total, s.last)
    end
    for i = 1, s.all and #s.all or 0, 2 do
      needed = needed - s.all[i + 1]
      if needed <= 0 then
        return packed('<I5I8', s.total, s.all[i])
      end
    end
    for at = HEAD + s.gone, s.size - 1, BLOCK do
      local block = call('GETRANGE', s.key, at, at + BLOCK - 1)
      for i = 1, #block, ENTRY do
        local time, count = unpacked('<I7I5', block, i)
        needed = needed - count
        if needed <= 0 then
          return packed('<I5I8', s.total, time)
        end
      end
    end
    return packed('<I5I8', s.total, s.last)
  end

  return log
end
