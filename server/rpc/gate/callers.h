// Who calls. gRPC gets its connections from the gates (gate.h) and knows them by names that the
// gates made up; the functions here know who is behind them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "grpcpp/grpcpp.h"

namespace nsa::server {

// One connection.
struct GateCaller {
  std::string certificate_name;     // common name of the certificate that it proved; empty: none
  std::atomic<bool> known = false;  // it has made a call that it may make
};

// A connection's name in the abstract namespace of unix sockets, for as long as it lives. No two
// connections of this process ever have the same.
class GateCallerName {
 public:
  // `address`: ConnectionSource::address.
  GateCallerName(const std::string& address, std::shared_ptr<GateCaller> caller);
  ~GateCallerName();
  GateCallerName(const GateCallerName&) = delete;
  GateCallerName& operator=(const GateCallerName&) = delete;

  // Without the null byte that such names begin with.
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
};

// Where a call comes from: "unix:1000" or "unix:0-1000" (unix_peer.h) for the unix socket and for
// nothing else, "ipv4:HOST:PORT" or "ipv6:%5BHOST%5D:PORT" for the TCP port. `peer` is what gRPC
// says.
std::string OriginOf(std::string_view peer);
std::string OriginOf(const grpc::CallbackServerContext& context);

// Whether it comes over the unix socket, which only its owner can open.
bool IsLocal(std::string_view origin);

// The caller that gRPC names `peer`; null when its connection has ended.
std::shared_ptr<GateCaller> FindGateCaller(std::string_view peer);

}  // namespace nsa::server
