// Load for SQLite: several threads, each running transactions that insert, update and select rows.
//
// By default every thread has a database of its own in memory, so that threads meet only inside the library
// (its allocator and page cache). With --shared they share one file in write-ahead mode and meet at its lock; with
// --synchronous 2 as well, each transaction waits until it is on the disk; with --no-sync too all is the same but that
// it does not wait; with --datasync it waits as little as it must. The file is made in $TMPDIR.
#define PROGRESS transaction_done
#include "common.h"
#include <sqlite3.h>
#include <sys/syscall.h>

static long threads = 2, inserts = 20, selects = 20, keys = 20000, shared, synchronous, no_memory_statistics, no_sync, datasync;
static char directory[200];
static char database[sizeof(directory) + 16];

enum statement { BEGIN, INSERT, SELECT, SUM, COMMIT, STATEMENTS };

static const char *const statement_text[STATEMENTS] = {
	[BEGIN] = "BEGIN IMMEDIATE",
	[INSERT] = "INSERT OR REPLACE INTO item(id, category, price, name) VALUES (?1, ?2, ?3, ?4)",
	[SELECT] = "SELECT name, price FROM item WHERE id = ?1",
	[SUM] = "SELECT count(*), sum(price) FROM item WHERE category = ?1",
	[COMMIT] = "COMMIT",
};

struct session {
	sqlite3 *db;
	sqlite3_stmt *statements[STATEMENTS];
	uint64_t random;
};

__attribute__((noreturn)) static void sqlite_die(sqlite3 *db, const char *what)
{
	fprintf(stderr, "sqlite_load: %s: %s\n", what, sqlite3_errmsg(db));
	_exit(3);
}

static void execute(sqlite3 *db, const char *sql)
{
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
		sqlite_die(db, sql);
}

static long random_below(struct session *session, long limit)
{
	session->random ^= session->random << 13;
	session->random ^= session->random >> 7;
	session->random ^= session->random << 17;
	return (long)(session->random % (uint64_t)limit);
}

static void run_statement(struct session *session, enum statement which)
{
	sqlite3_stmt *statement = session->statements[which];
	int result;

	do
		result = sqlite3_step(statement);
	while (result == SQLITE_ROW);
	if (result != SQLITE_DONE)
		sqlite_die(session->db, statement_text[which]);
	sqlite3_reset(statement);
}

static void insert_row(struct session *session, long id)
{
	sqlite3_stmt *insert = session->statements[INSERT];
	char name[48];
	int length = snprintf(name, sizeof(name), "item %ld of batch %ld", id, random_below(session, 1000000));

	sqlite3_bind_int64(insert, 1, id);
	sqlite3_bind_int64(insert, 2, random_below(session, keys / 10 + 1));
	sqlite3_bind_double(insert, 3, (double)random_below(session, 100000) / 100);
	sqlite3_bind_text(insert, 4, name, length, SQLITE_TRANSIENT);
	run_statement(session, INSERT);
}

// Rows are replaced, never added: the tables keep their size, so that a transaction costs the same all along.
static void transaction(struct session *session)
{
	run_statement(session, BEGIN);
	for (long i = 0; i < inserts; i++)
		insert_row(session, random_below(session, keys));
	for (long i = 0; i < selects; i++) {
		enum statement which = i % 4 ? SELECT : SUM;
		long limit = which == SELECT ? keys : keys / 10 + 1;

		sqlite3_bind_int64(session->statements[which], 1, random_below(session, limit));
		run_statement(session, which);
	}
	run_statement(session, COMMIT);
}

static _Atomic uint64_t sync_calls, sync_ns;

// In front of the C library's: what SQLite waits for the disk with. A write-ahead log that has its size needs no more than
// fdatasync(), which SQLite takes where it was built to.
int fsync(int file)
{
	uint64_t began = now_ns();
	long result = no_sync ? 0 : syscall(datasync ? SYS_fdatasync : SYS_fsync, file);

	sync_ns += now_ns() - began;
	sync_calls++;
	return (int)result;
}

static void open_session(struct session *session, bool create)
{
	if (sqlite3_open(database, &session->db) != SQLITE_OK)
		sqlite_die(session->db, "open");
	sqlite3_busy_timeout(session->db, 60000);
	if (shared) {
		char pragmas[80];

		snprintf(pragmas, sizeof(pragmas), "PRAGMA journal_mode = WAL; PRAGMA synchronous = %ld", synchronous);
		execute(session->db, pragmas);
	}
	if (create)
		execute(session->db, "CREATE TABLE item(id INTEGER PRIMARY KEY, category INTEGER, price REAL, name TEXT);"
				     "CREATE INDEX item_category ON item(category)");
	for (int i = 0; i < STATEMENTS; i++)
		if (sqlite3_prepare_v2(session->db, statement_text[i], -1, &session->statements[i], NULL) != SQLITE_OK)
			sqlite_die(session->db, statement_text[i]);
}

static void fill(struct session *session)
{
	run_statement(session, BEGIN);
	for (long id = 0; id < keys; id++)
		insert_row(session, id);
	run_statement(session, COMMIT);
}

static void *serve(void *argument)
{
	long number = (long)argument;
	struct session session = { .random = 88172645463325252UL + (uint64_t)number };

	open_session(&session, !shared);
	if (!shared)
		fill(&session);
	for (;;) {
		transaction(&session);
		count_round();
	}
	return NULL;
}

static void clean_up(void)
{
	const char *suffixes[] = { "", "-wal", "-shm" };
	char path[sizeof(database) + 8];

	if (sync_calls)
		printf("synchronised %llu times, %.2f us each\n", (unsigned long long)sync_calls, (double)sync_ns / 1e3 / (double)sync_calls);

	for (int i = 0; shared && i < 3; i++) {
		snprintf(path, sizeof(path), "%s%s", database, suffixes[i]);
		unlink(path);
	}
	if (shared)
		rmdir(directory);
}

static void create_shared(void)
{
	struct session session = { .random = 1 };

	const char *where = getenv("TMPDIR");

	// On a disk, where /tmp may be memory.
	snprintf(directory, sizeof(directory), "%s/sqlite_load.XXXXXX", where ? where : "/var/tmp");
	if (!mkdtemp(directory))
		die(directory);
	snprintf(database, sizeof(database), "%s/load.db", directory);
	open_session(&session, true);
	fill(&session);
	for (int i = 0; i < STATEMENTS; i++)
		sqlite3_finalize(session.statements[i]);
	sqlite3_close(session.db);
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ OPTION, "threads", &threads, "threads, each with a connection of its own" },
		{ OPTION, "inserts", &inserts, "rows replaced per transaction" },
		{ OPTION, "selects", &selects, "rows and sums read per transaction" },
		{ OPTION, "keys", &keys, "rows in a table" },
		{ FLAG, "shared", &shared, "one file for all threads, instead of one database each in memory" },
		{ OPTION, "synchronous", &synchronous, "of a shared file: 0 off, 1 normal, 2 full" },
		{ FLAG, "no-sync", &no_sync, "write all the same, but never wait for the disk" },
		{ FLAG, "datasync", &datasync, "wait for the disk with fdatasync() instead of fsync()" },
		{ FLAG, "no-memory-statistics", &no_memory_statistics, "so that the allocator needs no lock" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "an insert and select mix through the sqlite3 library");
	if (threads < 1 || keys < 10)
		usage_error(parameters, "threads must be at least 1, keys at least 10", "");
	strcpy(database, ":memory:");
	if (no_memory_statistics)
		sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
	if (shared)
		create_shared();
	at_finish = clean_up;
	started_ns = now_ns();
	for (long i = 1; i < threads; i++)
		start_thread(serve, (void *)i);
	serve((void *)0);
}
