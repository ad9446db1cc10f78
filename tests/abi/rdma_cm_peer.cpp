// One end of an rdma_cm connection that does what Debian's programs do not:
//   rdma_cm_peer connect ADDRESS PORT [TOS]  connects; says what came of it: EVENT STATUS PRIVATE_DATA, and
//   the
//                                         route and the queue pair's path, with a type of service
//   rdma_cm_peer reject PORT WORD         rejects one request with WORD as private data
//   rdma_cm_peer hold PORT                takes a request and never answers it
//   rdma_cm_peer accept PORT              accepts one request and says what comes after
//   rdma_cm_peer leave ADDRESS PORT       connects, and ends without taking anything down
// Every word that matters goes to standard output, and the last line is the verdict. Exit status: 0 unless a
// call failed.
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

[[noreturn]] void fail(const char* what) {
  std::printf("%s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

rdma_cm_event* next_event(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel, &event) != 0) fail("rdma_get_cm_event");
  return event;
}

void report(const rdma_cm_event& event) {
  const auto* const data = static_cast<const char*>(event.param.conn.private_data);
  const std::string text(data == nullptr ? "" : data);
  std::printf("%s %d %s\n", rdma_event_str(event.event), event.status, text.c_str());
}

// The path that the route has, and the one that librdmacm gave to the queue pair.
void report_path(const rdma_cm_id& id) {
  if (id.qp == nullptr) return;
  const ibv_sa_path_rec& route = *id.route.path_rec;
  std::printf("route slid %#x dlid %#x sl %d hops %d life %d\n", be16toh(route.slid), be16toh(route.dlid),
              route.sl, route.hop_limit, route.packet_life_time);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr unused{};
  if (ibv_query_qp(id.qp, &attributes, IBV_QP_AV, &unused) != 0) fail("ibv_query_qp");
  const ibv_ah_attr& path = attributes.ah_attr;
  std::printf("queue pair dlid %#x sl %d global %d\n", path.dlid, path.sl, path.is_global);
}

sockaddr_in address_of(const char* host, const char* port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host, port, &hints, &found) != 0) fail("getaddrinfo");
  sockaddr_in address{};
  std::memcpy(&address, found->ai_addr, sizeof address);
  freeaddrinfo(found);
  return address;
}

// False, with the event told, where it is not the one.
bool expect(rdma_event_channel* channel, rdma_cm_event_type type) {
  rdma_cm_event* const event = next_event(channel);
  const bool right = event->event == type;
  if (!right) report(*event);
  rdma_ack_cm_event(event);
  return right;
}

void make_queue_pair(rdma_cm_id* id) {
  ibv_qp_init_attr attributes{};
  attributes.cap.max_send_wr = 1;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.qp_type = IBV_QPT_RC;
  if (rdma_create_qp(id, nullptr, &attributes) != 0) fail("rdma_create_qp");
}

int connect_to(const char* host, const char* port, bool leave, std::uint8_t type_of_service) {
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  if (channel == nullptr || rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0) fail("rdma_create_id");
  sockaddr_in address = address_of(host, port);
  constexpr int kResolveMs = 2000;
  if (rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&address), kResolveMs) != 0) {
    fail("rdma_resolve_addr");
  }
  if (!expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) return 0;
  if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &type_of_service, 1) != 0)
    fail("rdma_set_option");
  if (rdma_resolve_route(id, kResolveMs) != 0) fail("rdma_resolve_route");
  if (!expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) return 0;
  make_queue_pair(id);
  rdma_conn_param parameters{};
  if (rdma_connect(id, &parameters) != 0) fail("rdma_connect");
  rdma_cm_event* const event = next_event(channel);
  report(*event);
  report_path(*id);
  if (leave) std::exit(0);
  rdma_ack_cm_event(event);
  rdma_destroy_qp(id);
  rdma_destroy_id(id);
  rdma_destroy_event_channel(channel);
  return 0;
}

enum class Answer { kAccept, kReject, kNone };

int serve(const char* port, Answer answer, const char* refusal) {
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  if (channel == nullptr || rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0) fail("rdma_create_id");
  sockaddr_in address = address_of("0.0.0.0", port);
  if (rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&address)) != 0) fail("rdma_bind_addr");
  if (rdma_listen(id, 1) != 0) fail("rdma_listen");
  rdma_cm_event* const event = next_event(channel);
  report(*event);
  std::fflush(stdout);
  rdma_cm_id* const request = event->id;
  if (answer == Answer::kNone) pause();
  if (answer == Answer::kAccept) {
    make_queue_pair(request);
    rdma_conn_param parameters{};
    if (rdma_accept(request, &parameters) != 0) fail("rdma_accept");
    for (int i = 0; i < 2; ++i) report(*next_event(channel));
    report_path(*request);
    return 0;
  }
  const auto length = static_cast<std::uint8_t>(std::strlen(refusal) + 1);
  if (rdma_reject(request, refusal, length) != 0) fail("rdma_reject");
  rdma_ack_cm_event(event);
  rdma_destroy_id(request);
  rdma_destroy_id(id);
  rdma_destroy_event_channel(channel);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string mode = count > 1 ? words[1] : "";
  if (count == 4 && mode == "connect") return connect_to(words[2], words[3], false, 0);
  if (count == 5 && mode == "connect") {
    return connect_to(words[2], words[3], false, static_cast<std::uint8_t>(std::atoi(words[4])));
  }
  if (count == 4 && mode == "leave") return connect_to(words[2], words[3], true, 0);
  if (count == 4 && mode == "reject") return serve(words[2], Answer::kReject, words[3]);
  if (count == 3 && mode == "hold") return serve(words[2], Answer::kNone, "");
  if (count == 3 && mode == "accept") return serve(words[2], Answer::kAccept, "");
  std::fprintf(
      stderr, "usage: rdma_cm_peer connect|leave ADDRESS PORT [TOS] | reject PORT WORD | hold|accept PORT\n");
  return 2;
}
