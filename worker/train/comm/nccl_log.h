// How NCCL reaches the other ranks. NCCL chooses the network itself and has no function that
// returns it; it only writes it into its log. This process therefore lets NCCL log into a pipe and
// reads there what the log says about networks and connections. Warnings of NCCL go on to this
// program's log.
//
// The lines are those of NCCL 2.17 to 2.30 (src/init.cc, src/plugin/net.cc, src/transport/*.cc):
// "Using network IB", "Assigned NET plugin IB to comm", "Channel 00/0 : 0[0] -> 1[1] via
// P2P/CUMEM", "… via NET/IB/0/GDRDMA", "… via SHM/direct/direct". A version that says it in other
// words leaves the answer empty, nothing else.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::train::nccl {

// What the log has said so far.
struct Transport {
  // The network between machines, also if there is only one machine: "IB" (RDMA), "Socket", or the
  // name of a plugin. Empty: not logged.
  std::string network;
  // What the channels to other ranks go through: "P2P/CUMEM", "SHM/direct", "NET/IB/GDRDMA",
  // "NET/Socket". NCCL makes a connection with the first operation that needs it.
  std::set<std::string> connections;
};

// "network IB, through NET/IB/GDRDMA and P2P/CUMEM"; empty if nothing is known.
std::string TransportText(const Transport& transport);

// Reads a log in pieces of any size. Its memory is bounded whatever the log contains: a line counts
// up to kMostLine bytes, a name up to kMostName, and there are at most kMostConnections.
class LogReader {
 public:
  static constexpr size_t kMostLine = 4096;
  static constexpr size_t kMostName = 48;
  static constexpr size_t kMostConnections = 16;
  static constexpr size_t kMostWarnings = 1000;

  void Add(std::string_view piece);

  // The warnings since the last call, on one line each and safe to show: "net.cc:301 NCCL WARN …"
  // as "net.cc:301: …". After kMostWarnings of a process there are no more, which the last one
  // says.
  std::vector<std::string> TakeWarnings();

  const Transport& transport() const { return transport_; }

 private:
  void EndLine();

  std::string line_;
  Transport transport_;
  std::vector<std::string> warnings_;
  size_t warned_ = 0;
};

// Makes a pipe and lets NCCL log into it, at the level INFO of the subsystem INIT. Does nothing if
// the environment asks for a log of its own: NCCL_DEBUG above WARN, NCCL_DEBUG_FILE or
// NCCL_DEBUG_SUBSYS. To be called before NCCL is loaded and before threads are started; further
// calls do nothing.
void RedirectLog();

// Reads what NCCL has logged since the last call, passes its warnings on, and returns what is
// known. Never waits. While NCCL works, somebody has to call it now and then: the pipe has room for
// 1 MiB, many times what NCCL says when it connects. Thread-safe; the log is that of all
// communicators of the process.
Transport ReadLog();

// The ports of this machine that can do RDMA and have a link, as "mlx5_0:1", sorted. At most 64.
std::vector<std::string> ActiveRdmaPorts(
    const std::filesystem::path& devices = "/sys/class/infiniband");

// Why ranks use sockets between machines although the machine could do RDMA, as `what: value
// (limit); what to do`. Empty if they do not, if there is no such port, or if the environment asks
// for sockets (NCCL_NET=Socket, NCCL_IB_DISABLE=1).
std::string FallToSockets(const Transport& transport, const std::vector<std::string>& rdma_ports);

}  // namespace nsa::train::nccl
