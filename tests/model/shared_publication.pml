/* Posting on a shared endpoint: device/impl/open_shared_endpoint.h and device/impl/shared_wait.h, step by step. Counters do
   not wrap here; owner bits do. Memory is sequentially consistent: fences are not modelled, the order of the steps
   is. Two queues are small enough for all interleavings: one of a block, on which reservations run three laps
   ahead, and (TWO_BLOCKS) one on which two posters have room at once. */

#if defined(TWO_BLOCKS) || defined(FAULT_NO_TURN) || defined(FAULT_TURN_BEFORE_RECORD) || \
    defined(FAULT_TURN_BEFORE_DOORBELL)
#define POSTERS 3
#define SIZE 2
#else
#define POSTERS 4
#define SIZE 1
#endif
#define NOBODY 255

byte reserved, published, completed;  /* device/ SharedState */
byte record;                          /* the doorbell record */
byte doorbell;                        /* where the newest doorbell says that the queue ends */
bool rung;                            /* a doorbell that the NIC has not seen */
byte wqe[SIZE] = NOBODY;              /* index of the WQE that a block holds */
byte cqe[SIZE] = NOBODY;              /* index that a CQE belongs to; a waiter sees only its lap's parity */
byte taken;                           /* by the NIC */
byte posted;                          /* calls that have returned */

#define SEES(index) (cqe[(index) % SIZE] != NOBODY && \
                     (cqe[(index) % SIZE] / SIZE) % 2 == ((index) / SIZE) % 2)

active [POSTERS] proctype Poster() {
  byte first, next, known;
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
  (published == first);
#endif
#ifdef FAULT_TURN_BEFORE_RECORD
  published = first + 1;
  record = first + 1;
#else
  record = first + 1;
#endif
#ifdef FAULT_TURN_BEFORE_DOORBELL
  published = first + 1;
#endif
#ifndef FAULT_NO_DOORBELL
  atomic {
    assert(first + 1 > doorbell);  /* a NIC may go by the index in a doorbell */
    doorbell = first + 1;
    rung = true
  }
#endif
#if !defined(FAULT_TURN_BEFORE_RECORD) && !defined(FAULT_TURN_BEFORE_DOORBELL)
  published = first + 1;
#endif
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
