/* Posting on a shared endpoint: device/impl/open_shared_endpoint.h and device/impl/shared_wait.h, step by step. Counters do
   not wrap here; owner bits do. Memory is sequentially consistent: fences are not modelled, the order of the steps
   is. Queues are small enough for all interleavings: one of a block, on which reservations run three laps ahead,
   and one on which two posters have room at once (TWO_BLOCKS), whose calls may fail too (FAILING). On a queue of
   four blocks (FOUR_BLOCKS) posters are further from their turn than there are marks. A post has one block. */

#if defined(FAILING) || defined(FAULT_CLAIM_IGNORED) || defined(FAULT_CLAIM_UNCHECKED)
#define FAILS
#define POSTERS 3
#define SIZE 2
#elif defined(FAULT_MARK_KEPT)
#define POSTERS 4
#define SIZE 2
#elif defined(FOUR_BLOCKS) || defined(FAULT_MARK_OF_ANOTHER_LAP)
#define POSTERS 4
#define SIZE 4
#elif defined(TWO_BLOCKS) || defined(FAULT_NO_TURN) || defined(FAULT_TURN_BEFORE_RECORD) || \
    defined(FAULT_TURN_BEFORE_DOORBELL)
#define POSTERS 3
#define SIZE 2
#else
#define POSTERS 4
#define SIZE 1
#endif
#define MARKS 2
#define NOBODY 255

byte reserved, published, completed;  /* device/ SharedState */
byte record;                          /* the doorbell record */
byte doorbell;                        /* where the newest doorbell says that the queue ends */
bool rung;                            /* a doorbell that the NIC has not seen */
byte wqe[SIZE] = NOBODY;              /* index of the WQE that a block holds */
byte cqe[SIZE] = NOBODY;              /* index that a CQE belongs to; a waiter sees only its lap's parity */
byte taken;                           /* by the NIC */
byte posted;                          /* calls that have returned */
bit mark[MARKS];                      /* a block is stored that waits for its turn */
byte claimed;                         /* end of what the poster with the turn publishes for others */
bool failed;                          /* the endpoint */
bool gave_up[POSTERS];                /* by index: the call has returned a failure */

#define SEES(index) (cqe[(index) % SIZE] != NOBODY && \
                     (cqe[(index) % SIZE] / SIZE) % 2 == ((index) / SIZE) % 2)

active [POSTERS] proctype Poster() {
  byte first, end, next, known;
  bit marked;
  atomic { first = reserved; reserved++ }
  /* wait_shared_room, for goal = first + 1 - SIZE */
  do
  :: known = completed;
     if
     :: first + 1 <= known + SIZE -> break
     :: else ->
        next = first + 1 - SIZE;
#ifndef FAULT_ANY_LAP
        if
        :: next > known + SIZE -> next = known + SIZE
        :: else
        fi;
#endif
        if
        :: SEES(next - 1) -> atomic { if :: completed < next -> completed = next :: else fi }
#ifdef FAILS
        :: failed -> gave_up[first] = true; goto ended
#endif
        :: else
        fi
     fi
  od;
  atomic {
    /* The block's former WQE must be the NIC's no longer. */
    assert(wqe[first % SIZE] == NOBODY || wqe[first % SIZE] < taken);
    wqe[first % SIZE] = first
  }
#ifndef FAULT_NO_TURN
  /* publish_late */
  do
  :: published == first -> break
  :: published > first -> goto ended
#ifndef FAULT_MARK_OF_ANOTHER_LAP
  :: !marked && published < first && first - published < MARKS -> mark[first % MARKS] = 1; marked = 1
#else
  :: !marked && published < first -> mark[first % MARKS] = 1; marked = 1
#endif
#ifdef FAILS
  :: published < first ->
     failed = true;  /* by a timeout, or it has failed before */
     if
#ifndef FAULT_CLAIM_IGNORED
     :: marked && claimed > first  /* until it is published or the claim is given up */
#endif
     :: !marked || claimed <= first -> gave_up[first] = true; goto ended
#ifdef FAULT_CLAIM_IGNORED
     :: claimed > first -> gave_up[first] = true; goto ended
#endif
     fi
#endif
  od;
  if
  :: marked -> mark[first % MARKS] = 0
  :: else
  fi;
#endif
  /* claim_marked */
  end = first + 1;
  do
  :: mark[end % MARKS] ->
#ifndef FAULT_MARK_KEPT
     mark[end % MARKS] = 0;
#endif
     end++;
     assert(end <= reserved)
  :: else -> break
  od;
  if
  :: end > first + 1 ->
     claimed = end;
#ifndef FAULT_CLAIM_UNCHECKED
     if
     :: failed -> end = first + 1; claimed = end
     :: else
     fi
#endif
  :: else
  fi;
#ifdef FAULT_TURN_BEFORE_RECORD
  published = end;
#endif
  for (next : first + 1 .. end - 1) { assert(!gave_up[next]) }
  record = end;
#ifdef FAULT_TURN_BEFORE_DOORBELL
  published = end;
#endif
#ifndef FAULT_NO_DOORBELL
  atomic {
    assert(end > doorbell);  /* a NIC may go by the index in a doorbell */
    doorbell = end;
    rung = true
  }
#endif
#if !defined(FAULT_TURN_BEFORE_RECORD) && !defined(FAULT_TURN_BEFORE_DOORBELL)
  published = end;
#endif
ended:
  posted++
}

active proctype Nic() {
  byte end;
  do
  :: atomic { rung -> rung = false };
     end = record;
     assert(end >= taken);
     do
     :: taken < end ->
        atomic {
          assert(wqe[taken % SIZE] == taken);  /* what the record covers is there */
          cqe[taken % SIZE] = taken;
          taken++
        }
     :: else -> break
     od
  od
}

/* Nothing is overwritten early, fetched unwritten or taken back: the assertions. The claim only has to be there. */
ltl conservation { [] (taken <= record || record == 0) }
ltl progress { <> (posted == POSTERS && taken == POSTERS) }
/* Of FAILING: every call returns, and no call that has failed is published (an assertion). */
ltl ended { <> (posted == POSTERS) }
