gdx_daemon_mutant(quota_given_back_twice
  FILE group.cpp
  FIND [[  used_ -= amount;]]
  REPLACE [[  used_ -= used_ < 2 * amount ? used_ : 2 * amount;]])

gdx_daemon_mutant(quota_larger_by_one
  FILE group.cpp
  FIND [[amount > most_ - used_)]]
  REPLACE [[amount > most_ - used_ + 1)]])

gdx_daemon_mutant(pool_shared_without_regard_to_its_rules
  FILE group.cpp
  FIND [[options.slot_bytes, options.minimum_slots,]]
  REPLACE [[options.slot_bytes, 1u,]])

gdx_daemon_mutant(peer_of_another_user
  FILE group.cpp
  FIND [[!leads_back(hca, peer)]]
  REPLACE [[(leads_back(hca, peer) || true)]])
