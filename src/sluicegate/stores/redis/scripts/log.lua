-- Sliding log, as sluicegate.algorithms has it. d[9]: the window in microseconds.
--
-- Text: limit, born, total, then time and count of every moment at which hits were accepted, oldest first.
-- State: `all`, times and counts of the live entries in one array; `raw`, those of all entries as they were read; total, of the live
-- ones; last, the newest time; set_back, where the clock was set back and the newest entries were taken to now.

local function make_log()
  local log = {}

  local function whole(items, born)
    local total = 0
    for i = 2, #items, 2 do
      total = total + items[i]
    end
    return { all = items, total = total, born = born, last = items[#items - 1] }
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

  function log.read(d, key)
    local text, err = fetch(key)
    if not text then
      return nil, err
    end
    if #text < 17 or (#text - 17) % 12 ~= 0 then
      return nil, UNREADABLE
    end
    local limit, born, total = unpacked('<I5I7I5', text)
    local items = {}
    for at = 18, #text, 12 do
      local time, count = unpacked('<I7I5', text, at)
      if time >= EXACT or count < 1 then
        return nil, UNREADABLE
      end
      total = total - count
      items[#items + 1], items[#items + 2] = time, count
    end
    if total ~= 0 or limit < 1 or born >= EXACT then
      return nil, UNREADABLE
    end
    local set_back = #items > 0 and items[#items - 1] - now > BEHIND_US
    local s = whole(live(d, items, set_back), born)
    s.raw, s.set_back = items, set_back
    if limit ~= d[6] then
      s.old = { limit }
    end
    return s
  end

  function log.carry(d, s)
    local items = s.all
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
    end
    return whole(appended(s and s.all or {}, d[7]), s and s.born or now)
  end

  function log.clamp(_, s)
    return s.set_back and whole(s.all, s.born) or s
  end

  function log.refused(d, s)
    return whole(newest(appended(s and s.all or {}, d[7]), d[6]), s and s.born or now)
  end

  function log.refund(d, s, charged_us)
    if now - charged_us >= d[9] then
      return s
    end
    local items = s.raw or s.all -- as it was written: a charge is known by its time
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

  function log.write(d, key, s)
    local parts = { packed('<I5I7I5', d[6], s.born, s.total) }
    for i = 1, #s.all, 2 do
      parts[#parts + 1] = packed('<I7I5', s.all[i], s.all[i + 1])
    end
    store(key, table.concat(parts), math.max(2 * d[9], (s.last or now) + d[9] - now))
  end

  -- What describes the answer: the total, and the time of the entry that it depends on. On a refusal, so many tokens must leave.
  function log.show(d, s, refused)
    if s.total == 0 then
      return packed('<I5I8', 0, 0)
    end
    local needed = refused and s.total + d[7] - d[6]
    if needed and needed <= s.total then
      for i = 1, #s.all, 2 do
        needed = needed - s.all[i + 1]
        if needed <= 0 then
          return packed('<I5I8', s.total, s.all[i])
        end
      end
    end
    return packed('<I5I8', s.total, s.last)
  end

  return log
end
