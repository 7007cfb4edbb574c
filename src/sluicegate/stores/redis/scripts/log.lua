-- Sliding log, as sluicegate.algorithms has it. The counter is a list: "<numbers>|<born> <total>", then time and count of every
-- moment at which hits were accepted, oldest first. d[7]: the window in microseconds.
--
-- A charge touches the ends of the list and what has left the window. What is rare (other numbers, a clock that was set back,
-- a refund) reads the whole list and writes it anew.
-- State: total (live tokens), gone (list items that have left), last and last_count (the newest entry); `all`, the live items in
-- an array, where they were read, and `raw`, all items as they were; `add`, tokens to append.

local function make_log()
  local log = {}

  local function check_entry(time, count)
    time, count = tonumber(time), tonumber(count)
    return time and count and time < EXACT and count >= 1 and count < EXACT
  end

  -- All items after the first as numbers, oldest first; nil where one is none.
  local function items_of(key)
    local items = call('LRANGE', key, 1, -1)
    for i = 1, #items do
      items[i] = tonumber(items[i])
      if not items[i] then
        return nil
      end
    end
    return #items % 2 == 0 and items or nil
  end

  local function whole(items, born)
    local total = 0
    for i = 2, #items, 2 do
      total = total + items[i]
    end
    return { all = items, total = total, gone = 0, born = born, last = items[#items - 1], last_count = items[#items] }
  end

  -- Entries later than now are taken to now; entries that have left the window are dropped.
  local function live(d, items, set_back)
    local kept = {}
    local late = 0
    for i = 1, #items, 2 do
      local time, count = items[i], items[i + 1]
      if set_back and time >= now then
        late = late + count
      elseif time > now - d[7] then
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

  -- Every entry of a counter as it is written, whatever `all` knows of it.
  local function loaded(d, key, s)
    return s.all or live(d, items_of(key) or {}, false)
  end

  function log.read(d, key)
    local head = pcall_('LRANGE', key, 0, 2)
    if head.err then
      return nil, head.err
    end
    if #head == 0 then
      return nil
    end
    local old, state = split(head[1])
    if not old or #old ~= 1 or old[1] < 1 or #state ~= 2 or #head == 2 then
      return nil, UNREADABLE
    end
    local s = { born = state[1], total = state[2], gone = 0, key = key }
    local other = sub(head[1], 1, #d[2]) ~= d[2]
    if #head == 3 then
      local tail = call('LRANGE', key, -2, -1)
      if not check_entry(head[2], head[3]) or not check_entry(tail[1], tail[2]) then
        return nil, UNREADABLE
      end
      s.last, s.last_count = tonumber(tail[1]), tonumber(tail[2])
      local set_back = s.last - now > BEHIND_US
      if set_back or other then
        local items = items_of(key)
        if not items then
          return nil, UNREADABLE
        end
        local born = s.born
        s = whole(live(d, items, set_back), born)
        s.key, s.set_back, s.raw = key, set_back, items
      else
        -- Leave out what has left the window, block by block.
        local first = 1
        while s.total > 0 do
          local block = call('LRANGE', key, first, first + 63)
          local i = 1
          while i < #block and tonumber(block[i]) and tonumber(block[i]) <= now - d[7] do
            if not check_entry(block[i], block[i + 1]) then
              return nil, UNREADABLE
            end
            s.total = s.total - tonumber(block[i + 1])
            s.gone = s.gone + 2
            i = i + 2
          end
          if i < #block or #block == 0 then
            break
          end
          first = first + 64
        end
        if s.total < 0 then
          return nil, UNREADABLE
        end
        if s.total == 0 then
          s.last = nil
        end
      end
    end
    if other then
      s.old = old
    end
    return s
  end

  function log.carry(d, s)
    local items = s.all or {}
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
    if #items == 0 then
      return nil
    end
    local carried = whole(items, s.born)
    carried.key = s.key
    return carried
  end

  function log.admit(d, s, cost)
    if cost > d[6] or (s and s.total + cost > d[6]) then
      return nil
    end
    local after = { total = cost, gone = 0, born = now, add = cost }
    if s then
      after.total, after.gone, after.born, after.all = s.total + cost, s.gone, s.born, s.all
      after.last, after.last_count = s.last, s.last_count
    end
    return after
  end

  function log.clamp(_, s)
    if not s.set_back then
      return s
    end
    local clamped = whole(s.all, s.born)
    clamped.key = s.key
    return clamped
  end

  function log.refused(d, s, cost, _, _, key)
    local items = {}
    if s then
      local all = loaded(d, key, s)
      for i = 1, #all do
        items[i] = all[i]
      end
    end
    if #items > 0 and items[#items - 1] >= now then
      items[#items] = items[#items] + cost
    else
      items[#items + 1], items[#items + 2] = now, cost
    end
    return whole(newest(items, d[6]), s and s.born or now)
  end

  function log.refund(d, s, cost, _, _, charged_us)
    if now - charged_us >= d[7] or not s.last then
      return s
    end
    local items = s.raw or loaded(d, s.key, s) -- as it was written: a charge is known by its time
    local kept, found = {}, false
    for i = 1, #items, 2 do
      local time, count = items[i], items[i + 1]
      if time == charged_us then
        found = true
        count = count - math.min(cost, count)
      end
      if count > 0 then
        kept[#kept + 1], kept[#kept + 2] = time, count
      end
    end
    return found and whole(kept, s.born) or s
  end

  function log.write(d, key, s)
    local head = format('%s%.0f %.0f', d[2], s.born, s.total)
    if s.all then
      call('DEL', key)
      call('RPUSH', key, head)
      for first = 1, #s.all, 1000 do
        local block = {}
        for i = first, math.min(first + 999, #s.all) do
          block[#block + 1] = format('%.0f', s.all[i])
        end
        call('RPUSH', key, unpack(block))
      end
    elseif s.born == now and not s.last and s.gone == 0 then
      call('DEL', key)
      call('RPUSH', key, head)
    else
      call('LPOP', key, 1 + s.gone)
      call('LPUSH', key, head)
    end
    if s.add then
      if s.last and s.last >= now then
        s.last_count = s.last_count + s.add
        call('LSET', key, -1, format('%.0f', s.last_count))
      else
        s.last, s.last_count = now, s.add
        call('RPUSH', key, format('%.0f', now), format('%.0f', s.add))
      end
      if s.all then
        s.all = nil
      end
      s.add = nil
    end
    s.gone, s.key = 0, key
    local ttl_us = math.max(2 * d[7], (s.last or now) + d[7] - now)
    call('PEXPIRE', key, format('%.0f', math.ceil(ttl_us / 1000) + hold_ms))
  end

  -- What describes the answer: the total, and the time of the entry that it depends on. On a refusal, `needed` tokens must leave.
  function log.show(_, s, needed)
    if not s or s.total == 0 then
      return s and { 0 } or {}
    end
    if not needed or needed > s.total then
      return { s.total, s.last }
    end
    local items, first = s.all, 1
    while true do
      local block = items or call('LRANGE', s.key, first + s.gone, first + s.gone + 63)
      for i = 1, #block, 2 do
        needed = needed - block[i + 1]
        if needed <= 0 then
          return { s.total, tonumber(block[i]) }
        end
      end
      if items or #block == 0 then
        return { s.total, s.last }
      end
      first = first + 64
    end
  end

  return log
end
