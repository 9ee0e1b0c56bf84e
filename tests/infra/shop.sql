-- A shop with customers who order, pay and change their minds.

create table customers (id int primary key, name text not null, city text);
create table products (id int primary key, name text not null, price numeric(10, 2) not null);
create table stock (product_id int primary key references products, pieces int not null);
create table orders (
    id bigint generated always as identity primary key,
    customer_id int not null references customers,
    state text not null,
    placed_at timestamptz not null default clock_timestamp()
);
create table order_lines (
    order_id bigint references orders on delete cascade,
    line int,
    product_id int not null references products,
    pieces int not null,
    price numeric(10, 2) not null,
    primary key (order_id, line)
);
create table payments (
    id bigint generated always as identity primary key,
    order_id bigint not null,
    amount numeric(12, 2) not null,
    paid_at timestamptz not null default clock_timestamp()
);
create table audit_log (what text not null, order_id bigint, at timestamptz not null default clock_timestamp());

insert into customers select id, 'Customer ' || id, (array['Riga', 'Bari', 'Lima', 'Cork'])[1 + id % 4] from generate_series(1, 1000) as id;
insert into products select id, 'Product ' || id, 1 + id % 90 + 0.5 from generate_series(1, 200) as id;
insert into stock select id, 1000 from products;

create procedure place_order(customer int, product int, pieces_wanted int) language plpgsql as $$
declare
    placed bigint;
begin
    insert into orders (customer_id, state) values (customer, 'placed') returning id into placed;
    insert into order_lines
        select placed, row_number() over (order by id), id, pieces_wanted, price from products where id in (product, product % 200 + 1);
    update stock set pieces = pieces - pieces_wanted where product_id in (product, product % 200 + 1);
    insert into audit_log (what, order_id) values ('placed', placed);
end $$;

create procedure pay_order() language plpgsql as $$
declare
    due bigint;
begin
    select id into due from orders where state = 'placed' order by id limit 1 for update skip locked;
    if due is null then
        return;
    end if;
    insert into payments (order_id, amount) select due, coalesce(sum(pieces * price), 0) from order_lines where order_id = due;
    update orders set state = 'paid' where id = due;
    insert into audit_log (what, order_id) values ('paid', due);
end $$;

create procedure cancel_order() language plpgsql as $$
declare
    regretted bigint;
begin
    select id into regretted from orders where state = 'placed' order by id desc limit 1 for update skip locked;
    delete from orders where id = regretted;
    insert into audit_log (what, order_id) values ('cancelled', regretted);
end $$;

create table debezium_signal (id text primary key, type text not null, data text); -- the connector's own
