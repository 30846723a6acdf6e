// For threads that write TLS: OpenSSL cannot ask for a write without SIGPIPE, which would end the
// process when a client has gone.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace nsa {

// For the calling thread: a write to a connection that the client has ended fails with EPIPE.
inline void BlockSigpipe() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
}

}  // namespace nsa
