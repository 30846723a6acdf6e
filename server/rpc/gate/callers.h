// Who calls. gRPC gets the connections of the TCP port from the gate (gate.h) and knows them by a
// name that the gate made up; the functions here know who is behind it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "grpcpp/grpcpp.h"

namespace nsa::server {

// One connection of the TCP port.
struct TcpCaller {
  std::string certificate_name;     // common name of the certificate that it proved; empty: none
  std::atomic<bool> known = false;  // it has made a call with a valid token
};

// A connection's name in the abstract namespace of unix sockets, for as long as it lives. No two
// connections of this process ever have the same.
class TcpCallerName {
 public:
  // `address` as gRPC names one, but with plain brackets: "ipv4:10.0.0.7:51234", "ipv6:[::1]:80".
  TcpCallerName(const std::string& address, std::shared_ptr<TcpCaller> caller);
  ~TcpCallerName();
  TcpCallerName(const TcpCallerName&) = delete;
  TcpCallerName& operator=(const TcpCallerName&) = delete;

  // Without the null byte that such names begin with.
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
};

// Where a call comes from: "unix:…" for the unix socket and for nothing else, "ipv4:HOST:PORT" or
// "ipv6:%5BHOST%5D:PORT" for the TCP port. `peer` is what gRPC says.
std::string OriginOf(std::string_view peer);
std::string OriginOf(const grpc::CallbackServerContext& context);

// Whether it comes over the unix socket, which only its owner can open.
bool IsLocal(std::string_view origin);

// The TCP caller that gRPC names `peer`; null for the unix socket, and when its connection has
// ended.
std::shared_ptr<TcpCaller> FindTcpCaller(std::string_view peer);

}  // namespace nsa::server
