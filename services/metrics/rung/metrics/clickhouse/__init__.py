"""ClickHouse, in this process (chDB) or on a server: connections, blocks, tables, errors."""
