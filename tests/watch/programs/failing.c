/* Linked into the recorder, in place of what it calls: the call with the number FAILS fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int calls, wanted;

static int fails(int error) {
  if (!wanted) wanted = getenv("FAILS") ? atoi(getenv("FAILS")) : -1;
  if (++calls != wanted) return 0;
  errno = error;
  return 1;
}

void *__real_malloc(size_t), *__real_calloc(size_t, size_t), *__real_realloc(void *, size_t);
void *__real_mmap(void *, size_t, int, int, int, off_t);
int __real_open(const char *, int, ...), __real_ftruncate(int, off_t);
int __real_madvise(void *, size_t, int);
ssize_t __real_write(int, const void *, size_t), __real_pwrite(int, const void *, size_t, off_t);

void *__wrap_malloc(size_t size) { return fails(ENOMEM) ? 0 : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return fails(ENOMEM) ? 0 : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return fails(ENOMEM) ? 0 : __real_realloc(old, size); }
ssize_t __wrap_pwrite(int file, const void *text, size_t size, off_t from) {
  return fails(ENOSPC) ? -1 : __real_pwrite(file, text, size, from);
}
int __wrap_ftruncate(int file, off_t size) { return fails(EIO) ? -1 : __real_ftruncate(file, size); }
int __wrap_madvise(void *at, size_t size, int how) { return fails(EFAULT) ? -1 : __real_madvise(at, size, how); }
void *__wrap_mmap(void *at, size_t size, int may, int how, int file, off_t from) {
  return fails(ENOMEM) ? MAP_FAILED : __real_mmap(at, size, may, how, file, from);
}
int __wrap_open(const char *path, int how, ...) {
  va_list more;
  va_start(more, how);
  int mode = how & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  return fails(EMFILE) ? -1 : __real_open(path, how, mode);
}
ssize_t __wrap_write(int file, const void *text, size_t size) {
  return file != 2 && fails(EDQUOT) ? -1 : __real_write(file, text, size);
}

__attribute__((destructor)) static void tell(void) {
  if (calls < wanted) fprintf(stderr, "none has failed\n");
}
