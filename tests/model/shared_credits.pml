/* The credits of an endpoint that two threads share (device/impl/shared_credits.h), beside two exclusive endpoints
 * on the same pool. A compare-and-swap that is tried until it succeeds is one step, at its success. What
 * staging_credits.pml shows of exclusive endpoints and of the scheduler is taken for granted here: those endpoints
 * are counts, and the scheduler may grant above the minimum, or ask back down to it, when it likes.
 *
 * Positions of the shared endpoint's ring: [returned, filled) are taken, [filled, ready) are credits, and both ends of
 * these are one word. `place` says what is true of each slot; only assertions read it.
 *
 * Planted faults, each of which check.sh must see found:
 *   FAULT_TWO_STEPS       a credit is taken by a load and a store, not by a compare-and-swap
 *   FAULT_BLIND_TAKE_BACK a poll takes back idle credits without looking whether they are still idle
 *   FAULT_RETURN_AT_BIND  a slot comes back when its WQE is published, not when that is complete
 *   FAULT_NO_TICKETS      whoever comes first has the credit, whoever waits
 *   FAULT_LOST_TICKET     who gives up waiting does not count among those who left
 *   FAULT_NO_ABANDON      a slot that no WQE sends is left as it is
 *   FAULT_LOST_RETURN     a slot above the limit leaves the ring and is not given back
 *   FAULT_RETURN_TWICE    an idle credit above the limit is given back and stays a credit
 */

#define SLOTS 4
#define MOST 2 /* that the shared endpoint may hold: so many slots of the pool have a number here */
#define RING 3 /* positions are modulo this */

mtype = { IN_POOL, IDLE, FILLING, WITH_NIC };
mtype place[MOST] = IN_POOL;
#define move(s, from, to) assert(place[s] == from); place[s] = to

/* The scheduler's books; 0 is the shared endpoint. */
byte leased[3];
byte free = SLOTS;
byte limit = 1;
byte may_sink = 2; /* times. A limit that sank and rose for ever could take back each credit before its waiter polls */
bool wants;

/* Between the scheduler and the shared endpoint. */
chan granted = [MOST] of { byte };
chan returning = [MOST] of { byte };
bool failed; /* the endpoint has said so: it takes no grant any more */

/* The shared endpoint. */
mtype = { UNSAID, BOUND, ABANDONED };
byte filled, ready; /* one word */
byte returned;
byte ring[RING];
mtype tag[RING] = UNSAID;
bool completed[RING];
/* arrived - left, and what each waiting thread sees of those before it: its ticket - left, or 0 where others who gave
 * up behind it make that negative. The counters themselves would run without end. */
byte waiters, ahead[2];
bool failure;
bool busy; /* the lock of a poll, whose own variables follow */
byte done, r, most, s;

chan posted = [MOST] of { byte }; /* positions, in the order of their WQEs */
bool error; /* of the queue pair */

bool waiting[2]; /* only properties read it */

#define next(p) (((p) + 1) % RING)
#define before(p) (((p) + RING - 1) % RING)
#define distance(from, to) (((to) + RING - (from)) % RING)
#define is_done(p) (tag[p] == ABANDONED || (tag[p] == BOUND && completed[p]))

/* A position that nobody looks at; else what it said before would make states differ. */
#define forget(p) ring[p] = 0; tag[p] = UNSAID; completed[p] = false

/* One poll, by who has the lock. `asks`: the caller waits for a credit. */
inline poll_credits(asks) {
  if
  :: atomic { !busy -> busy = true };
     /* What is done stays done until the lock's owner takes it, so the scan is as if made at its end. */
     d_step {
       done = returned;
       r = ready;
       do
#ifdef FAULT_RETURN_AT_BIND
       :: done != filled && (is_done(done) || tag[done] == BOUND) -> done = next(done)
#else
       :: done != filled && is_done(done) -> if :: error && tag[done] == BOUND -> failure = true :: else fi;
          done = next(done)
#endif
       :: else -> break
       od
     };
     if
     :: d_step { !failure ->
          do
          :: nempty(granted) -> granted ? s; ring[r] = s; r = next(r)
          :: empty(granted) -> break
          od;
          wants = asks;
          most = limit }
     :: d_step { failure -> wants = false; failed = true; most = 0 }
     fi;
     /* Of the lock alone: what is done becomes a credit or goes back. */
     d_step {
       do
       :: returned != done ->
          s = ring[returned];
          forget(returned);
          returned = next(returned);
          if
          :: distance(returned, r) < most -> ring[r] = s; r = next(r)
#ifdef FAULT_LOST_RETURN
          :: else -> move(s, IDLE, IDLE)
#else
          :: else -> move(s, IDLE, IDLE); returning ! s
#endif
          fi
       :: returned == done -> break
       od
     };
#ifdef FAULT_BLIND_TAKE_BACK
     done = filled;
     d_step {
#else
     d_step {
       done = filled;
#endif
       ready = r;
#ifdef FAULT_RETURN_TWICE
       if :: ready != done && distance(returned, ready) > most -> returning ! ring[before(ready)] :: else fi;
       most = distance(returned, ready);
#endif
       do
       :: ready != done && distance(returned, ready) > most -> ready = before(ready)
       :: else -> break
       od;
       most = ready
     };
     d_step {
       do
       :: r != most -> r = before(r); s = ring[r]; forget(r); move(s, IDLE, IDLE); returning ! s
       :: r == most -> break
       od;
       done = 0; r = 0; most = 0; s = 0;
       busy = false
     }
  :: busy -> skip
  fi
}

/* Sets `got`, and `position`. Those before the thread are counted first: they may be fewer when it takes. */
inline try_take(before_it) {
#ifdef FAULT_NO_TICKETS
  n = 0;
#else
  n = before_it;
#endif
  if
#ifdef FAULT_TWO_STEPS
  :: distance(filled, ready) > n -> position = filled; filled = next(position); got = true
#else
  :: d_step { distance(filled, ready) > n -> position = filled; filled = next(position); got = true }
#endif
  :: else
  fi;
  n = 0
}

/* Thread 1 may give up waiting; thread 0 never does, so that its progress can be demanded. */
proctype Thread(byte t) {
  byte position, n;
  bool got;
  do
  :: failure -> break
  :: !failure ->
     try_take(waiters);
     if
     :: got
     :: else ->
        d_step { ahead[t] = waiters; if :: waiters < 3 -> waiters++ :: else fi; waiting[t] = true };
        do
        :: failure -> break
        :: !failure ->
           poll_credits(true);
           try_take(ahead[t]);
           if
           :: got -> break
           :: !got && t == 1 -> break
           :: !got
           fi
        od;
        skip; /* Spin lets nothing jump to a d_step */
        d_step {
          waiting[t] = false;
          ahead[t] = 0;
#ifdef FAULT_LOST_TICKET
          if
          :: got -> waiters--; if :: ahead[1 - t] > 0 -> ahead[1 - t]-- :: else fi
          :: else
          fi
#else
          waiters--;
          if :: ahead[1 - t] > 0 -> ahead[1 - t]-- :: else fi
#endif
        }
     fi;
     if
     :: got ->
        d_step { got = false; move(ring[position], IDLE, FILLING) };
        if
        :: d_step { move(ring[position], FILLING, WITH_NIC); tag[position] = BOUND; posted ! position; position = 0 }
        :: d_step { failure -> move(ring[position], FILLING, IDLE);
#ifndef FAULT_NO_ABANDON
             tag[position] = ABANDONED;
#endif
             position = 0 }
        fi
     :: else
     fi
  od;
  /* give_back_shared */
  do
  :: poll_credits(false);
     if :: returned == filled && !busy -> break :: else fi
  od
}

/* WQEs complete in the order in which they were posted; once one has failed all others are flushed. */
proctype Nic() {
  byte p;
  do
  :: d_step { nempty(posted) -> posted ? p; move(ring[p], WITH_NIC, IDLE); completed[p] = true; p = 0 }
  :: d_step { nempty(posted) && !error -> error = true;
       posted ? p; move(ring[p], WITH_NIC, IDLE); completed[p] = true; p = 0 }
  od
}

/* An exclusive endpoint has its minimum, and at times a slot more. */
proctype Exclusive(byte e) {
  do
  :: d_step { leased[e] == 1 && free > (leased[0] == 0 && !failed) -> leased[e]++; free-- }
  :: d_step { leased[e] == 2 -> leased[e]--; free++ }
  od
}

proctype Scheduler() {
  byte i;
  do
  :: d_step { nempty(returning) -> returning ? i; move(i, IDLE, IN_POOL); leased[0]--; free++; i = 0 }
  :: d_step { failed && nempty(granted) -> granted ? i; move(i, IDLE, IN_POOL); leased[0]--; free++; i = 0 }
  :: d_step { wants && !failed && free > 0 && leased[0] < MOST ->
       wants = false;
       do :: place[i] != IN_POOL -> i++ :: else -> break od;
       move(i, IN_POOL, IDLE);
       leased[0]++; limit = leased[0]; free--; granted ! i; i = 0 }
  :: d_step { may_sink > 0 && limit > 1 && limit <= leased[0] -> may_sink--; limit-- }
  od
}

/* Between two polls each slot that the books show with the shared endpoint is granted and not taken, in the ring, or on
 * its way back, and nothing else is there. That it is there once, and in the state that its place says, the assertions
 * hold, which this search checks too. The sum over the pool is no claim here: each step of the scheduler moves both
 * its sides at once; staging_credits.pml has it. */
#define held distance(returned, ready)
ltl conservation { [] (busy || leased[0] == len(granted) + held + len(returning)) }
/* A thread with a ticket gets its credit, unless the endpoint fails. */
ltl progress { [] (waiting[0] -> <> !waiting[0]) }
/* After a failure everything goes back. */
ltl reclaimed { [] (failure -> <> (leased[0] == 0)) }

init {
  atomic {
    leased[1] = 1; leased[2] = 1; free = SLOTS - 2;
    run Thread(0); run Thread(1); run Nic(); run Scheduler(); run Exclusive(1); run Exclusive(2)
  }
}
