-- A table with everything that is awkward, one small table to truncate, and a function that changes the first at random.

create table awkward (
    region text,
    number int,
    note text,
    amount numeric(20, 6),
    at timestamptz,
    day date,
    tag uuid,
    doc jsonb,
    words text[],
    raw bytea,
    big text,
    "größe" double precision,
    flag boolean,
    primary key (region, number)
);
-- Values above 2 kB are stored apart and uncompressed: an update that leaves them alone does not send them.
alter table awkward
    alter doc set storage external, alter words set storage external, alter raw set storage external,
    alter big set storage external;

create table prices (id int primary key, note text);

create function one_of(choices text[]) returns text language sql volatile as
$$ select choices[1 + floor(random() * cardinality(choices))::int] $$;

create function odd_text() returns text language sql volatile as
$$ select one_of(array['', ' ', 'plain', 'O''Reilly', 'back\slash\n', E'two\nlines\tand a tab', '"quoted"', E'\r\n', 'ünïcode 日本語 🦆',
                       E'\u2028\u00a0', '{"like": "JSON"}', 'null', 'NULL', '\x00', '__debezium_unavailable', 'a,b;c=d%2F', repeat('é', 300), null]) $$;

create function long_text(chance double precision) returns text language sql volatile as
$$ select case when random() < chance then (select string_agg(md5(random()::text), 'ß') from generate_series(1, 80 + (random() * 80)::int))
          else odd_text() end $$;

create function random_row(wanted_region text, wanted_number int) returns awkward language plpgsql volatile as
$$
declare
    made awkward;
begin
    made.region := wanted_region;
    made.number := wanted_number;
    made.note := odd_text();
    made.amount := case when random() < 0.1 then null when random() < 0.05 then -99999999999999.999999
                   else round(((random() - 0.5) * power(10, random() * 14))::numeric, 6) end;
    made.at := case when random() < 0.1 then null when random() < 0.05 then timestamptz '9999-12-31 23:59:59.999999+00'
               else timestamptz '1900-01-01 00:00:00+00' + random() * interval '180 years' end;
    made.day := case when random() < 0.1 then null when random() < 0.05 then date '9999-12-31'
                else date '1900-01-01' + (random() * 60000)::int end;
    made.tag := case when random() < 0.1 then null else gen_random_uuid() end;
    made.doc := case when random() < 0.1 then null
                else jsonb_build_object('text', long_text(0.2), 'n', random(), 'deep', jsonb_build_array(null, 1.50, odd_text(), '{}'::jsonb)) end;
    made.words := case when random() < 0.1 then null when random() < 0.1 then array[]::text[]
                  else array[odd_text(), long_text(0.2), null, odd_text()] end;
    made.raw := case when random() < 0.1 then null when random() < 0.1 then ''::bytea else convert_to(coalesce(long_text(0.2), '?'), 'utf8') end;
    made.big := long_text(0.7);
    made."größe" := case when random() < 0.1 then null else random() * power(10, (random() * 600 - 300)::int) end;
    made.flag := case when random() < 0.3 then null else random() < 0.5 end;
    return made;
end
$$;

-- One transaction: what it does depends on a number from 0 to 99; a and b name keys.
create function change_awkward(what int, a int, b int) returns void language plpgsql as
$$
declare
    regions text[] := array['EU', 'O''Hara', 'ü/ñ 日本', 'a\b"c'];
    r text := regions[1 + a % 4];
    made awkward := random_row(r, a);
begin
    if what < 30 then
        delete from awkward where region = r and number = a;
        insert into awkward select made.*;
    elsif what < 60 then  -- leaves the large values alone
        update awkward set note = made.note, amount = made.amount, at = made.at, flag = made.flag where region = r and number = a;
    elsif what < 65 then
        update awkward set big = made.big where region = r and number = a;
    elsif what < 70 then
        update awkward set doc = made.doc, day = made.day where region = r and number = a;
        update awkward set words = made.words, raw = made.raw where region = r and number = a;
    elsif what < 80 then
        delete from awkward where region = r and number = a;
    elsif what < 90 then  -- another key; the large values are sent, since nobody could look them up under it
        made := random_row(regions[1 + b % 4], b);
        update awkward set (region, number, note, amount, at, day, tag, doc, words, raw, big, "größe", flag) = (select made.*)
        where region = r and number = a;
    else
        insert into awkward select made.*;
    end if;
exception when unique_violation or deadlock_detected then
    null;  -- what was done before it is rolled back with it, and must never arrive
end
$$;
