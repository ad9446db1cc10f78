/* Staging credits shared by several endpoints: reserve, push, post, complete, return, error and death.
 *
 * A slot travels: pool -> granted -> local -> filled -> posted -> done -> local again, or returning -> pool.
 * The algorithm moves slot numbers through queues and keeps books, as the runtime does. `place` says what is
 * true of each slot; only assertions read it, so that a fault of the algorithm cannot hide behind it.
 * Source: docs/staging.md, "Sharing the staging pool".
 *
 * Planted faults, each of which check.sh must see found:
 *   FAULT_RETURN_AT_POST   a credit comes back when its WQE is posted, not when it is complete
 *   FAULT_NO_RESERVE       growth may take what a waiting endpoint needs for its minimum
 *   FAULT_RECLAIM_EARLY    a dead client's slots come back before its queue pair is destroyed
 *   FAULT_LEAK_ON_ERROR    what the NIC flushes is not given back
 *   FAULT_LEAK_GRANTS      what was granted while an endpoint failed is left with it
 */

#define ENDPOINTS 3
#define SLOTS 4

mtype = { AT_POOL, AT_GRANTED, AT_LOCAL, AT_FILLED, AT_POSTED, AT_DONE, AT_RETURNING };
mtype = { RUNNING, FAILED, DEAD, GONE };

mtype place[SLOTS] = AT_POOL;

/* The scheduler's books. lessee: who holds the slot, ENDPOINTS for nobody. */
chan pool = [SLOTS] of { byte };
byte lessee[SLOTS] = ENDPOINTS;
byte leased[ENDPOINTS];
byte limit[ENDPOINTS]; /* an endpoint that holds more gives back */

/* Between the scheduler and each endpoint. */
chan granted[ENDPOINTS] = [SLOTS] of { byte };
chan returning[ENDPOINTS] = [SLOTS] of { byte };
bool failed[ENDPOINTS]; /* the endpoint has said so: it takes no grant any more */
bool wants[ENDPOINTS]; /* a slot more than granted. Stands until it is granted, though the stall may be over */

/* The endpoint's own. */
chan credits[ENDPOINTS] = [SLOTS] of { byte };
byte held[ENDPOINTS];
bool filling[ENDPOINTS];
bool stalled[ENDPOINTS]; /* for a credit; only properties read it */
mtype state[ENDPOINTS] = RUNNING;

/* The NIC's queues. */
chan posted[ENDPOINTS] = [SLOTS] of { byte };
chan completed[ENDPOINTS] = [SLOTS] of { byte };
bool exists[ENDPOINTS] = true; /* the queue pair */

#define move(slot, from, to) assert(place[slot] == from); place[slot] = to

/* What goes wrong in a run: endpoint 0 never fails, so that its progress can be demanded. */
bool may_fail = true;
bool may_die = true;

proctype Endpoint(byte e) {
  byte s;
  byte filled;
  do
  :: d_step { state[e] == RUNNING && !filling[e] && empty(credits[e]) && !stalled[e] ->
       stalled[e] = true; wants[e] = true }

  :: d_step { state[e] == RUNNING && nempty(granted[e]) ->
       granted[e] ? s; move(s, AT_GRANTED, AT_LOCAL); held[e]++; credits[e] !! s; s = 0 }

  /* Push: stores to the slot take time, so filling and posting are two steps. */
  :: d_step { state[e] == RUNNING && !filling[e] && nempty(credits[e]) ->
       credits[e] ? filled; stalled[e] = false; filling[e] = true;
       assert(lessee[filled] == e); move(filled, AT_LOCAL, AT_FILLED) }
  :: d_step { state[e] == RUNNING && filling[e] ->
       filling[e] = false; move(filled, AT_FILLED, AT_POSTED); posted[e] ! filled;
#ifdef FAULT_RETURN_AT_POST
       credits[e] !! filled;
#endif
       filled = 0 }

  /* Complete: the slot is kept for the next push, or given back when the endpoint is above its limit. */
  :: d_step { state[e] == RUNNING && nempty(completed[e]) ->
       completed[e] ? s;
#ifndef FAULT_RETURN_AT_POST
       if
       :: held[e] > limit[e] -> move(s, AT_DONE, AT_RETURNING); held[e]--; returning[e] !! s
       :: else -> move(s, AT_DONE, AT_LOCAL); credits[e] !! s
       fi;
#endif
       s = 0 }
  :: d_step { state[e] == RUNNING && held[e] > limit[e] && nempty(credits[e]) ->
       credits[e] ? s; move(s, AT_LOCAL, AT_RETURNING); held[e]--; returning[e] !! s; s = 0 }

  /* In error it says so, and then everything goes back; the NIC flushes what was posted. */
  :: d_step { state[e] == FAILED && !failed[e] -> failed[e] = true; wants[e] = false }
  :: d_step { failed[e] && filling[e] ->
       filling[e] = false; move(filled, AT_FILLED, AT_RETURNING); held[e]--; returning[e] !! filled; filled = 0 }
  :: d_step { failed[e] && nempty(credits[e]) ->
       credits[e] ? s; move(s, AT_LOCAL, AT_RETURNING); held[e]--; returning[e] !! s; s = 0 }
  :: d_step { failed[e] && nempty(completed[e]) ->
       completed[e] ? s;
#ifndef FAULT_LEAK_ON_ERROR
       move(s, AT_DONE, AT_RETURNING); held[e]--; returning[e] !! s;
#endif
       s = 0 }

  /* The client is killed, wherever it was; its queues stay as they are. */
  :: d_step { e == 1 && state[e] == RUNNING && may_die -> may_die = false; state[e] = DEAD; wants[e] = false; stalled[e] = false }
  :: state[e] == DEAD || state[e] == GONE -> break
  od
}

/* A silent peer never acknowledges. */
proctype Nic(byte e; bool silent) {
  byte s;
  do
  :: d_step { !silent && exists[e] && state[e] != FAILED && nempty(posted[e]) ->
       posted[e] ? s; move(s, AT_POSTED, AT_DONE); completed[e] ! s; s = 0 }
  :: d_step { state[e] == FAILED && nempty(posted[e]) ->
       posted[e] ? s; move(s, AT_POSTED, AT_DONE); completed[e] ! s; s = 0 }
  :: d_step { e == 2 && may_fail && state[e] == RUNNING && nempty(posted[e]) ->
       may_fail = false; state[e] = FAILED; stalled[e] = false }
  :: !exists[e] -> break
  od
}

/* The minimum of every open endpoint that has nothing yet stays in the pool. Above it an endpoint may grow
 * while it holds less than what is free besides: the dynamic threshold. */
#define open(e) (!failed[e] && (state[e] == RUNNING || state[e] == FAILED))
#define unserved(e) (open(e) && leased[e] == 0)
#define reserved (unserved(0) + unserved(1) + unserved(2))
#define asked_back(e) (leased[e] > limit[e] -> leased[e] - limit[e] : 0)
#define expected (len(pool) + asked_back(0) + asked_back(1) + asked_back(2))
#define other_waits(e) ((e != 0 && wants[0]) || (e != 1 && wants[1]) || (e != 2 && wants[2]))
#ifdef FAULT_NO_RESERVE
#define may_have(e) true
#else
#define may_have(e) (leased[e] == 0 || leased[e] + reserved < len(pool))
#endif

/* What the scheduler does for one endpoint; its steps interleave with those for the others. */
proctype Scheduler(byte e) {
  byte s;
  byte i;
  do
  :: d_step { nempty(returning[e]) ->
       returning[e] ? s; move(s, AT_RETURNING, AT_POOL);
       assert(lessee[s] == e && leased[e] > 0);
       lessee[s] = ENDPOINTS; leased[e]--; pool !! s; s = 0 }

  /* The minimum, then growth for as long as the endpoint holds less than what would stay free. */
  :: d_step { open(e) && wants[e] && nempty(pool) && may_have(e) ->
       wants[e] = false;
       pool ? s; move(s, AT_POOL, AT_GRANTED); lessee[s] = e; leased[e]++;
       limit[e] = leased[e]; granted[e] !! s; s = 0 }

#ifndef FAULT_LEAK_GRANTS
  :: d_step { failed[e] && nempty(granted[e]) ->
       granted[e] ? s; move(s, AT_GRANTED, AT_POOL); lessee[s] = ENDPOINTS; leased[e]--; pool !! s; s = 0 }
#endif

  /* Somebody else waits: who would not be granted its last slot again must shrink, down to the minimum. */
  :: d_step { open(e) && other_waits(e) && limit[e] > 1 && limit[e] <= leased[e] &&
       limit[e] - 1 >= expected + 1 - reserved -> limit[e]-- }

  /* A dead client: its queue pair is destroyed first, then every slot in the books comes back. */
  :: d_step { state[e] == DEAD ->
#ifndef FAULT_RECLAIM_EARLY
       do
       :: nempty(posted[e]) -> posted[e] ? s
       :: empty(posted[e]) -> break
       od;
       exists[e] = false;
#endif
       do
       :: nempty(granted[e]) -> granted[e] ? s
       :: nempty(credits[e]) -> credits[e] ? s
       :: nempty(completed[e]) -> completed[e] ? s
       :: nempty(returning[e]) -> returning[e] ? s
       :: empty(granted[e]) && empty(credits[e]) && empty(completed[e]) && empty(returning[e]) -> break
       od;
       i = 0;
       do
       :: i < SLOTS ->
          if
          :: lessee[i] == e -> place[i] = AT_POOL; lessee[i] = ENDPOINTS; leased[e]--; pool !! i
          :: else
          fi;
          i++
       :: else -> break
       od;
       assert(leased[e] == 0);
       held[e] = 0; filling[e] = false; s = 0; i = 0; state[e] = GONE }
  od
}


/* Every slot is in the pool or leased to somebody, whatever is going on. */
bool started;
#define conserved (!started || len(pool) + leased[0] + leased[1] + leased[2] == SLOTS)
ltl conservation { [] conserved }
/* Who has slots leased has as many: in one of his queues, or being filled. */
#define has(e) (filling[e] + len(granted[e]) + len(credits[e]) + len(posted[e]) + len(completed[e]) + len(returning[e]))
ltl books { [] (leased[0] == has(0) && leased[1] == has(1) && leased[2] == has(2)) }
/* Endpoint 0 never fails and its peer is alive: it always gets to push, whoever else stalls or dies. */
ltl progress { [] (stalled[0] -> <> !stalled[0]) }
/* A failed or dead endpoint keeps nothing for ever. */
ltl reclaimed { [] ((state[1] == DEAD -> <> (leased[1] == 0)) && (state[2] == FAILED -> <> (leased[2] == 0))) }

init {
  byte s;
  atomic {
    do :: s < SLOTS -> pool !! s; s++ :: else -> break od;
    s = 0;
    started = true;
    run Endpoint(0); run Endpoint(1); run Endpoint(2);
    run Nic(0, false);
    if :: run Nic(1, false) :: run Nic(1, true) fi;
    run Nic(2, false);
    run Scheduler(0); run Scheduler(1); run Scheduler(2)
  }
}
