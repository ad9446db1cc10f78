/* The credits of an endpoint that two threads share, beside two exclusive endpoints of the same pool:
 * device/impl/shared_credits.h step by step, where each step of one atomic access is one here. The scheduler and
 * the exclusive endpoints are those of staging_credits.pml, by their essence: a minimum each, growth while a slot is
 * free and no minimum is missing, a limit that sinks while others wait.
 *
 * Endpoint 0 is the shared one. Its ring of held slots is positions [returned, ready), of which the threads share
 * [filled, ready) by one word. A position is free to use, being filled, with the NIC (bound), complete or abandoned.
 *
 * Planted faults, each of which check.sh must see found:
 *   FAULT_TWO_STEPS        a credit is taken by a load and a store, not by one compare-and-swap
 *   FAULT_NO_TICKETS       whoever comes first takes a credit, whoever waits
 *   FAULT_LOST_TICKET      a thread that gives up does not say so
 *   FAULT_TAKE_BACK_USED   a look lowers `ready` without looking whether the credits are still there
 *   FAULT_RETURN_AT_BIND   a slot comes back when its WQE is published, not when it is complete
 *   FAULT_NO_ABANDON       a slot for which no WQE came of it is not abandoned
 */

#define THREADS 2
#define SLOTS 3
#define RING 4 /* positions modulo this; more than SLOTS, as a counter is */

mtype = { FREE, FILLING, BOUND, DONE, ABANDONED };

/* What is true of each slot: only assertions read it. */
mtype = { AT_POOL, AT_SHARED, AT_EXCLUSIVE, AT_NIC };
mtype place[SLOTS] = AT_POOL;

/* The scheduler's books: slots in the pool, and what each endpoint holds. */
chan pool = [SLOTS] of { byte };
byte leased[3];
byte limit = SLOTS; /* of the shared endpoint */

/* Scheduler to shared endpoint and back. */
chan granted = [SLOTS] of { byte };
chan returning = [SLOTS] of { byte };
bool wants, failed;

/* The shared endpoint: positions, and the ring. */
byte filled, ready, returned;
byte slot[RING];
mtype tag[RING] = FREE;
bool busy, failure, failing;
byte arrived, left;
byte taken[THREADS]; /* tickets in use, for the property alone */
bool waits[THREADS];
byte looking; /* a look has so many slots in its hands */
bool gives_up[THREADS];

#define at(p) ((p) % RING)
#define ahead(from, to) (((to) + RING - (from)) % RING)

/* Counters wrap at RING; tickets at 8, which never are so far apart. */
#define TICKETS 8
#define before(ticket) ((ticket + TICKETS - left) % TICKETS)
