-- Merges facts into one operation, all or nothing.
--
-- Facts are text that is compared and never read: Lua would bend the numbers in it. What needs decoded values, whether
-- a live boundary replaces the stored one, was decided by the caller on an assumption; it is checked here, and where
-- it does not hold nothing is written and the caller decides anew.
--
-- KEYS: facts, versions, index, due, incarnation, and with a writer its sequence.
-- ARGV: see below, then the assumptions and the facts, each a field and its text; an assumed text is '' for none.
--
-- Returns {0} if there is no operation, {0, incarnation, version} if nothing changed, {1, incarnation, version} if
-- something did, and {2, text, ...} with what is stored instead of what was assumed. The error FOREIGN and a number says
-- which other key than the first holds something that is not the store's.

local facts, versions, index, due, incarnations, sequences = unpack(KEYS)
local opid, channel, sequence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now, overlap, lifetime = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] -- microseconds, twice, and milliseconds
local assumptions = tonumber(ARGV[7])
local first_fact = 8 + 2 * assumptions

local CHUNK = 1000 -- Lua cannot pass on more than some thousand values at once
local SWEEP = 16
local SEQUENCE_LIFETIME = 3600 -- seconds

local function digits(number) -- tostring() would write large numbers in scientific notation
    return string.format('%.0f', number)
end

local function foreign(position)
    return redis.error_reply('FOREIGN ' .. position)
end

local function failure_of(reply, position)
    if type(reply) == 'table' and reply.err then
        return string.find(reply.err, 'WRONGTYPE', 1, true) and foreign(position) or reply
    end
end

local function number_at(key, position) -- 0 if there is none
    local text = redis.pcall('GET', key)
    local failure = failure_of(text, position)
    local number = not failure and tonumber(text or '0')
    return number, failure or not number and foreign(position)
end

local head = redis.call('HMGET', facts, 'v', 'c', 'u', 'n')
local version, incarnation, updated, count = head[1], head[2], head[3], head[4]
local exists = version and incarnation and updated and count
if exists then
    exists = tonumber(version) and tonumber(incarnation) and tonumber(updated) and tonumber(count)
    if not exists then
        return redis.error_reply('DAMAGED head')
    end
elseif version or incarnation or updated or count or redis.call('EXISTS', facts) == 1 then
    return redis.error_reply('DAMAGED head')
end
local unchanged = exists and {0, incarnation, version} or {0}

-- A call that was given up may come late: it must not undo what its writer saved since.
if sequences then
    local last, failure = number_at(sequences, 6)
    if failure then
        return failure
    elseif last > sequence then
        return unchanged
    end
end

local stored = {2}
local holds = true
for position = 8, first_fact - 1, 2 do
    local text = redis.call('HGET', facts, ARGV[position]) or ''
    holds = holds and text == ARGV[position + 1]
    stored[#stored + 1] = text
end
if not holds then
    return stored
end

local changes = {}
local added = 0
for begin = first_fact, #ARGV, 2 * CHUNK do
    local fields = {}
    for position = begin, math.min(begin + 2 * CHUNK, #ARGV) - 1, 2 do
        fields[#fields + 1] = ARGV[position]
    end
    local texts = redis.call('HMGET', facts, unpack(fields))
    for number, field in ipairs(fields) do
        local text = ARGV[begin + 2 * number - 1]
        if texts[number] ~= text then
            changes[#changes + 1] = field
            changes[#changes + 1] = text
            if not texts[number] then
                added = added + 1
            end
        end
    end
end

if sequences and (exists or #changes > 0) then
    redis.call('SET', sequences, digits(sequence), 'EX', SEQUENCE_LIFETIME)
end
if #changes == 0 then
    return unchanged
end

if exists then
    version = digits(tonumber(version) + 1)
    updated = tonumber(updated)
    updated = digits(updated <= now + overlap and math.max(now, updated + 1) or now)
else
    -- Never one that the bucket had before, however the clocks go.
    local last, failure = number_at(incarnations, 5)
    if failure then
        return failure
    end
    incarnation = digits(math.max(now, last + 1))
    version, updated, count = '1', digits(now), '0'
    redis.call('SET', incarnations, incarnation)
    redis.call('DEL', versions)
end

-- The hash comes last: a key that holds something else ends the script, and then nothing of the operation has changed.
for begin = 1, #changes, 2 * CHUNK do
    local scores = {}
    for position = begin, math.min(begin + 2 * CHUNK, #changes + 1) - 1, 2 do
        scores[#scores + 1] = version
        scores[#scores + 1] = changes[position]
    end
    local failure = failure_of(redis.pcall('ZADD', versions, unpack(scores)), 2)
    if failure then
        return failure
    end
end
local failure = failure_of(redis.pcall('ZADD', index, updated, opid), 3)
if failure then
    return failure
end
if lifetime ~= '' then
    local time = redis.call('TIME')
    local milliseconds = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    failure = failure_of(redis.pcall('ZADD', due, digits(milliseconds + tonumber(lifetime)), opid), 4)
    if failure then
        return failure
    end
    local expired = redis.call('ZRANGEBYSCORE', due, '-inf', digits(milliseconds), 'LIMIT', 0, SWEEP)
    if #expired > 0 then
        redis.call('ZREM', index, unpack(expired))
        redis.call('ZREM', due, unpack(expired))
    end
else
    local left = redis.pcall('ZREM', due, opid)
    failure = failure_of(left, 4)
    if failure then
        return failure
    elseif left == 1 then
        redis.call('PERSIST', facts)
        redis.call('PERSIST', versions)
    end
end
for begin = 1, #changes, 2 * CHUNK do
    redis.call('HSET', facts, unpack(changes, begin, math.min(begin + 2 * CHUNK - 1, #changes)))
end
redis.call('HSET', facts, 'v', version, 'c', incarnation, 'u', updated, 'n', digits(tonumber(count) + added))
if lifetime ~= '' then
    redis.call('PEXPIRE', facts, lifetime)
    redis.call('PEXPIRE', versions, lifetime)
end

-- A hint, so a user who may not publish still saves.
redis.pcall('PUBLISH', channel, incarnation .. ':' .. version .. ':' .. opid)
return {1, incarnation, version}
