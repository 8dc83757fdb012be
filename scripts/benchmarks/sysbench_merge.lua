-- A merge as sysbench sends it: the statements of the MySQL store, prepared, a row a thread, without any JSON.

sysbench.cmdline.options = {
    replace = {"The UPDATE", ""},
    select = {"The SELECT before it, none if empty", ""},
    payload = {"What is written", ""},
    now = {"The time of all writes, in microseconds", ""},
    row = {"The ids of the rows but for the number of the thread", ""},
}

function thread_init()
    connection = sysbench.sql.driver():connect()
    id = sysbench.opt.row .. sysbench.tid
    local found = connection:query_row("SELECT created_at FROM timelines WHERE id = '" .. id .. "'")
    version = tonumber(connection:query_row("SELECT version FROM timelines WHERE id = '" .. id .. "'"))

    local kind = sysbench.sql.type
    replace = connection:prepare(sysbench.opt.replace)
    local parameters = {}
    for number, length in ipairs({8192, 32, 32, 32, 191, 32}) do
        parameters[number] = replace:bind_create(kind.VARCHAR, length)
    end
    expected = replace:bind_create(kind.BIGINT)
    replace:bind_param(
        parameters[1], parameters[2], parameters[3], parameters[4], parameters[5], parameters[6], expected
    )
    for number, value in ipairs({
        sysbench.opt.payload, sysbench.opt.now, sysbench.opt.now, sysbench.opt.now, id, found
    }) do
        parameters[number]:set(value)
    end

    if sysbench.opt.select ~= "" then
        select_row = connection:prepare(sysbench.opt.select)
        local wanted = select_row:bind_create(kind.VARCHAR, 191)
        select_row:bind_param(wanted)
        wanted:set(id)
    end
end

function event()
    if select_row then
        select_row:execute():free()
    end
    expected:set(version)
    replace:execute()
    version = version + 1
end
