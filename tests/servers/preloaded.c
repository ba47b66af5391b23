// Preloaded into a server, makes it listen on the loopback interface where it would listen on every one. Beam's servers
// have no setting for it, neither those in Java nor the worker pool in Python.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>

int bind(int socket, const struct sockaddr *given, socklen_t size) {
  int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
  struct sockaddr_storage address = {0};
  memcpy(&address, given, size < sizeof address ? size : sizeof address);
  struct sockaddr_in *four = (struct sockaddr_in *)&address;
  struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
  if (address.ss_family == AF_INET && four->sin_addr.s_addr == htonl(INADDR_ANY))
    four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (address.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr))
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &six->sin6_addr);
  return next(socket, (struct sockaddr *)&address, size);
}
