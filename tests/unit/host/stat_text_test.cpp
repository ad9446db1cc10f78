// The text of gdx stat and gdx top for statistics of gdxd, of which no two figures are alike.
#include "host/programs/cli/stat_text.h"

#include <gtest/gtest.h>

#include "tests/expected_text.h"

namespace gdx {
namespace stat_text_test {

using Json = nlohmann::ordered_json;

// Two users; process 401 has two HCAs, whose queue pairs have the same number, and process 402 has none.
Json statistics() {
  return Json::parse(R"({"gdxd_version": "9.8.7", "draining": false, "users": [
      {"uid": 1000, "clients": 3, "endpoints": 4, "regions": 5, "registered_bytes": 7340032,
       "pools": [{"hca": "gdx0", "memory": "nic", "bytes": 131072, "slots": 32, "leased_slots": 17, "bad_returns": 0},
                 {"hca": "gdx1", "memory": "host", "bytes": 4194304, "slots": 64, "leased_slots": 9, "bad_returns": 2}],
       "hcas": [{"name": "gdx0", "address": "127.0.0.5",
                 "counters": {"softhca_packets_sent": 10000, "softhca_retransmitted_packets": 11,
                              "local_ack_timeout_err": 12, "packet_seq_err": 13, "softhca_staging_violations": 14}},
                {"name": "mlx5_1", "address": "fe80::1",
                 "counters": {"softhca_packets_sent": 900, "packet_seq_err": 15}}]},
      {"uid": 0, "clients": 1, "endpoints": 0, "regions": 0, "registered_bytes": 1048575, "pools": [], "hcas": []}],
    "clients": [
      {"pid": 401, "uid": 1000, "program": "first", "hca": "gdx0", "endpoints": [
        {"qpn": 256, "peer": "QP 0x101 at 127.0.0.6", "posted_blocks": 1000, "stalls": 21, "syndrome": 0},
        {"qpn": 257, "peer": "", "posted_blocks": 4294967000, "stalls": 22, "syndrome": 5}]},
      {"pid": 401, "uid": 1000, "program": "first", "hca": "gdx1", "endpoints": [
        {"qpn": 256, "peer": "QP 0x301 at fe80::aaaa:bbbb", "posted_blocks": 5000, "stalls": 0, "syndrome": 129},
        {"qpn": 258, "peer": "QP 0x303 at fe80::aaaa:bbbb", "posted_blocks": 3000, "stalls": 0, "syndrome": 0}]},
      {"pid": 402, "uid": 1000, "program": "second", "hca": "gdx0", "endpoints": []},
      {"pid": 7, "uid": 0, "program": "fifteen-letters", "hca": "mlx5_1", "endpoints": [
        {"qpn": 16777215, "peer": "QP 0x1 at ::1", "posted_blocks": 1, "stalls": 1234567, "syndrome": 0}]}]})");
}

TEST(StatText, has_each_figure_and_of_a_later_picture_the_rates) {
  const Json first = statistics();
  Json then = first;
  then["draining"] = true;
  then["users"][0]["hcas"][0]["counters"]["softhca_packets_sent"] = 15000;
  then["users"][0]["hcas"][1]["counters"]["softhca_packets_sent"] = 100;  // opened again
  then["users"][1]["registered_bytes"] = 1048576;
  then["clients"][0]["endpoints"][0]["posted_blocks"] = 1750;
  then["clients"][0]["endpoints"][1]["posted_blocks"] = 704;  // modulo 2^32
  then["clients"][1]["endpoints"][0]["posted_blocks"] = 5025;
  then["clients"][1]["endpoints"][1]["posted_blocks"] = 12;  // made again
  then["clients"][3]["endpoints"][0]["qpn"] = 4;             // a new one
  expect_text("stat.txt",
              stat_text(first, Json::object(), 0) + "\n2.5 s later\n" + stat_text(then, first, 2.5));
}

}  // namespace stat_text_test
}  // namespace gdx
