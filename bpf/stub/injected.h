// What stands at the beginning of the injected code: how a later attach recognises an earlier one.

#define INJECTED_MAGIC 0x31666270756173c3UL
#define INJECTED_MAGIC_TEXT "0x31666270756173c3"

struct injected {
	unsigned long magic;
	unsigned long answers; // address of the table in the target
	unsigned long lines;   // of the table
	unsigned long size;    // of the code, which changes with the version
	unsigned long next;    // the program's own handler, to be called after ours; 0: none
	unsigned long unused[3];
};
